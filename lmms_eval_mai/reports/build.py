"""Builds a report: reads the folders, makes every table that the runs allow, and tells what is missing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import cascade_tables, figures, method_tables, paper_tables, probabilities, rules
from lmms_eval_mai.reports.claims import claims
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name, documents, family
from lmms_eval_mai.reports.read import Run, read
from lmms_eval_mai.reports.report import Estimate, Report, RunSummary, Table

Make = Callable[[Evidence], Iterator[Table]]
TABLES: tuple[Make, ...] = (
    paper_tables.token_tables,
    paper_tables.score_tables,
    paper_tables.transfer_table,
    paper_tables.sparse_table,
    paper_tables.cascade_table,
    paper_tables.two_stage_table,
    method_tables.method_table,
    method_tables.comparison_table,
    method_tables.repeats_table,
    cascade_tables.exit_table,
    cascade_tables.agreement_table,
    cascade_tables.harm_table,
    method_tables.router_table,
    rules.rules_table,
    probabilities.probability_tables,
    cascade_tables.kinds_table,
)
COUNTS = ("table-10", "accuracy-by-exit", "agreement", "harm-and-rescue")
"""Tables with numbers of documents by exit or by answer."""
NO_CASCADE = (
    "There is no run with mode=cascade. Table 10, the exits, and the comparison of MAI with other methods need one, "
    "with --log_samples."
)


def evidence(folders: Sequence[Path], seconds: Callable[[Run], pd.Series | None] | None = None) -> Evidence:
    """Return the runs in the folders.

    `seconds`: returns the time of each document of a run by profiles of its models. Raises `ArgumentError` if a folder
    does not exist, or if there is nothing in them.
    """
    found = read(folders)
    if not found.runs:
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: there is no run of lmms-eval. Run lmms-eval with --output_path and "
            f"--log_samples, and give that path. {' '.join(found.gaps)}"
        )
    runs = Evidence(found.runs, seconds)
    runs.gaps[:0] = found.gaps
    return runs


def report(folders: Sequence[Path]) -> Report:
    """Return the report of all runs in the folders. Raises `ArgumentError` if there is no run."""
    return of_evidence(evidence(folders))


def of_evidence(runs: Evidence, more: Sequence[Make] = ()) -> Report:
    """Return the report of the runs, which `page/` needs too. `more`: makes other tables of the runs."""
    tables = [_with_resampling(runs, one) for make in (*TABLES, *more) for one in make(runs)]
    missing = [] if any(runs.of("cascade")) else [NO_CASCADE]
    if runs.seconds is not None and all(runs.cost(run, "seconds") is None for run in runs.runs.values()):
        missing.append(
            "The profile of --profile does not have the models of these runs, so there are no profile seconds."
        )
    claimed = tuple(f"{claim.sentence} {claim.more}" for claim in claims(runs))
    sentences = dict.fromkeys([*runs.gaps, *_other_numbers(runs), *_other_pairs(runs), *_on_calibrated(runs), *missing])
    drawn = tuple(figures.figures(runs))
    return Report(claimed, tuple(tables), drawn, summaries(runs), tuple(sentences))


def _with_resampling(runs: Evidence, table: Table) -> Table:
    """Add what the intervals and p of a table resample."""
    named = {str(row[0]) for row in table.rows}
    shown = [benchmark for benchmark in runs.benchmarks() if benchmark_name(benchmark) in named]
    notes = list(filter(None, map(runs.resampling, shown)))
    if table.key in COUNTS and any(run.samples.repeat.max() > 0 for name in shown for run in runs.of_benchmark(name)):
        notes.append("Numbers of documents count each answer, if a document was answered several times.")
    has_intervals = any(isinstance(cell, Estimate) and cell.low is not None for row in table.rows for cell in row)
    has_tests = any(column.kind == "p" for column in table.columns)
    return replace(table, notes=(*table.notes, *notes)) if has_intervals or has_tests else table


def summaries(runs: Evidence) -> tuple[RunSummary, ...]:
    """Return one line for each run, used or not."""
    used = [one for run in runs.runs.values() if not run.derived for one in run.repeats or (run,)]
    return tuple(
        RunSummary(
            file=str(run.file),
            task=run.task,
            benchmark=run.benchmark,
            method=runs.name(run.method),
            model=" + ".join(filter(None, (run.method.model, run.method.small))),
            documents=run.documents,
            wall_s=run.wall_s,
            used=run not in runs.unused,
        )
        for run in [*used, *runs.unused]
    )


def _other_numbers(runs: Evidence) -> Iterator[str]:
    """Yield a sentence for each benchmark on which runs of the paper's models have other numbers of documents."""
    for benchmark in runs.benchmarks():
        expected = documents(benchmark)
        numbers = {run.documents for run in runs.of_benchmark(benchmark) if family(run.method.model)}
        if expected is not None and numbers and numbers != {expected}:
            shown = ", ".join(map(str, sorted(numbers)))
            yield (
                f"{benchmark_name(benchmark)}: the paper has {expected} documents and these runs {shown}, so the "
                "differences from the paper are between different documents."
            )


def _on_calibrated(runs: Evidence) -> Iterator[str]:
    """Yield a sentence for each run whose threshold was chosen with documents that it is scored on."""
    for run in runs.of("cascade"):
        used = sum(not run.calibrated_with.isdisjoint(images) for images in run.samples.images.dropna())
        if used:
            yield (
                f"{benchmark_name(run.benchmark)}: {used:,} of the {len(run.samples):,} scored answers of "
                f"{runs.name(run.method)} are about images that chose its threshold, so its score may be too good. "
                "Score it on other documents."
            )


def _other_pairs(runs: Evidence) -> Iterator[str]:
    """Yield a sentence for each benchmark that has cascades, and runs of models that are in none of them."""
    for benchmark in runs.benchmarks():
        cascades = list(runs.of("cascade", benchmark))
        others = [run for mode in ("alone", "transfer") for run in runs.of(mode, benchmark)]
        apart = [run for run in others if not any(method_tables.is_comparable(one, run) for one in cascades)]
        if cascades and apart:
            shown = ", ".join(runs.name(run.method) for run in apart)
            yield (
                f"{benchmark_name(benchmark)}: no cascade has the models of {shown}, so MAI is not compared with them."
            )
