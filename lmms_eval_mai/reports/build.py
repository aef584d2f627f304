"""Builds a report: reads the folders, makes the tables, and tells what is missing."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pandas as pd

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import paper_tables, rules, seconds, summary
from lmms_eval_mai.reports.folders import Run, read_runs
from lmms_eval_mai.reports.paper_numbers import benchmark_name, documents, family
from lmms_eval_mai.reports.report import Estimate, Report, Table
from lmms_eval_mai.reports.runs import Runs

Make = Callable[[Runs], Iterator[Table]]
SUMMARY: tuple[Make, ...] = (
    summary.method_table,
    summary.comparison_table,
    summary.agreement_table,
    summary.harm_table,
)
"""The tables of every report."""
PAPER: dict[str, Make] = {
    "5": paper_tables.token_tables,
    "6": paper_tables.score_tables,
    "7": paper_tables.score_tables,
    "8": paper_tables.transfer_table,
    "10": paper_tables.cascade_table,
    "13": paper_tables.token_tables,
    "14": paper_tables.score_tables,
    "15": paper_tables.two_stage_table,
}
"""Number of a table of the paper -> the function that makes it."""
TABLE_11 = "11"
"""It needs the seconds of calls."""
NUMBERS = (*PAPER, TABLE_11)
"""The tables of the paper."""
CHOICES = ("paper", "rules", "all", *NUMBERS)
"""What `tables` may name."""
NO_CASCADE = (
    "There is no run of MAI (mode=cascade, in which the small model thinks). Table 10, the exits, and the comparison "
    "of MAI with other methods need one, with --log_samples."
)


def report(folders: Sequence[Path], tables: Collection[str] = ("all",)) -> Report:
    """Return the report of all runs in the folders. `tables`: what to add to the summary, of `CHOICES`. Raises
    `ArgumentError` if there is no run."""
    return of_runs(read(folders), tables)


def read(folders: Sequence[Path], of_run: Callable[[Run], pd.Series | None] | None = None) -> Runs:
    """Return the runs in the folders. `of_run`: returns the time of each document of a run by a profile of its models.
    Raises `ArgumentError` if a folder does not exist, or if there is no run in them."""
    found = read_runs(folders)
    if not found.runs:
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: there is no run of lmms-eval. Run lmms-eval with --output_path and "
            f"--log_samples, and give that path. {' '.join(found.gaps)}"
        )
    runs = Runs(found.runs, of_run)
    runs.gaps[:0] = found.gaps
    return runs


def of_runs(runs: Runs, tables: Collection[str] = ("all",), profile: seconds.Profile | None = None) -> Report:
    """Return the report of the runs. `profile`: the times of Table 11; None: the paper's."""
    wanted = {*tables, *(CHOICES if "all" in tables else NUMBERS if "paper" in tables else ())}
    made = [table for make in SUMMARY for table in make(runs)]
    if "rules" in wanted:
        made += rules.rules_table(runs)
    makes = dict.fromkeys(make for number, make in PAPER.items() if number in wanted)
    made += (table for make in makes for table in make(runs) if table.key.removeprefix("table-") in wanted)
    if TABLE_11 in wanted:
        made += seconds.table_11(runs, profile or seconds.read())
    names, legend = runs.short_names()
    cells = (cell for table in made for row in table.rows for cell in row if isinstance(cell, Estimate))
    if any(cell.paper is not None for cell in cells):
        legend = (*legend, "[number] = the paper's number")
    missing = [] if any(runs.of("cascade")) else [NO_CASCADE]
    if runs.seconds is not None and all(summary.spent(runs, run)["seconds"] is None for run in runs.runs.values()):
        missing.append(
            "The profile of --profile does not have the models of these runs, so there are no profile seconds."
        )
    resampled = filter(None, map(runs.resampling, runs.benchmarks()))
    doubts = [*runs.gaps, *resampled, *_other_numbers(runs), *_other_pairs(runs), *_on_calibrated(runs), *missing]
    return Report(tuple(made), tuple(dict.fromkeys(doubts)), names, legend)


def _other_numbers(runs: Runs) -> Iterator[str]:
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


def _on_calibrated(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each run whose threshold was chosen with documents that it is scored on."""
    for run in runs.of("cascade"):
        used = sum(not run.calibrated_with.isdisjoint(images) for images in run.samples.images.dropna())
        if used:
            yield (
                f"{benchmark_name(run.benchmark)}: {used:,} of the {len(run.samples):,} scored answers of "
                f"{runs.name(run.method)} are about images that chose its threshold, so its score may be too good. "
                "Score it on other documents."
            )


def _other_pairs(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each benchmark that has cascades, and runs of models that are in none of them."""
    for benchmark in runs.benchmarks():
        cascades = list(runs.of("cascade", benchmark))
        others = [run for mode in ("alone", "transfer") for run in runs.of(mode, benchmark)]
        apart = [run for run in others if not any(summary.is_comparable(one, run) for one in cascades)]
        if cascades and apart:
            shown = ", ".join(runs.name(run.method) for run in apart)
            yield (
                f"{benchmark_name(benchmark)}: no cascade has the models of {shown}, so MAI is not compared with them."
            )
