"""Makes the tables of a report, and tells what is missing or in doubt."""

from collections.abc import Collection, Iterator

from lmms_eval_mai.analysis.paper_numbers import benchmark_name, documents, family
from lmms_eval_mai.analysis.report import Report
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import exits, paper_tables, seconds, summary
from lmms_eval_mai.analysis.tables.verdict import verdict
from lmms_eval_mai.method.benchmarks import benchmark_of

SUMMARY = (summary.method_table, exits.exit_table, summary.difference_table)
"""The tables of every report."""
TABLE_11 = "11"
"""The table that needs a profile."""
CHOICES = ("paper", "all", *paper_tables.NUMBERS)
"""What `tables` may name."""


def report(runs: Runs, tables: Collection[str] = ("all",), profile: seconds.Profile | None = None) -> Report:
    """Return the report of the runs. `tables`: what to add to the summary, of `CHOICES`. `profile`: the times of Table
    11; None: the paper's."""
    chosen = paper_tables.NUMBERS if {"paper", "all"} & {*tables} else tables
    made = [table for make in SUMMARY for table in make(runs)]
    times = profile or seconds.papers_profile()
    made += paper_tables.tables(runs, chosen, times)
    missing = _not_made(runs, {table.key for table in made}, tables, chosen, times)
    doubts = (*_other_documents(runs), *_dependent_documents(runs), *_other_numbers(runs), *_on_calibrated(runs))
    said, not_said = verdict(runs)
    return Report(tuple(made), (*runs.gaps, *not_said, *missing, *doubts), tuple(runs.legend()), tuple(said))


def _not_made(
    runs: Runs, made: Collection[str], named: Collection[str], chosen: Collection[str], profile: seconds.Profile
) -> Iterator[str]:
    """Yield a sentence for each table that was asked for by its number and has no row, and for Table 11."""
    for key, (numbers, *_) in paper_tables.TABLES.items():
        asked = [str(number) for number in numbers if str(number) in named]
        if key == f"table-{TABLE_11}" and TABLE_11 in chosen and key not in made:
            every = (model for run in runs.select() for model in (run.setup.small, run.setup.model))
            models = ", ".join(dict.fromkeys(model for model in every if model and model not in profile.models))
            yield (
                f"Table 11: there are no times of {models} on {profile.device}. Measure them with `python "
                "experiments/latency/calls.py --pair PAIR --output_path latency`, then give report "
                "--profile latency/profile.json."
            )
        elif asked and key not in made:
            named_so = ",".join(asked)
            yield f"Table {named_so}: its runs are not here. `lmms-eval-mai compare --tables {named_so}` makes them."


def _other_documents(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each benchmark whose rows have different numbers of documents."""
    for benchmark in runs.benchmarks():
        numbers = {runs.name(run.setup): run.documents for run in runs.select(benchmark=benchmark)}
        if len({*numbers.values()}) > 1:
            shown = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
            yield (
                f"{benchmark_name(benchmark)}: the rows have different numbers of documents ({shown}). Compare their "
                "scores only in Differences and By exit."
            )


def _dependent_documents(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each benchmark whose documents are not independent of each other, or may not be."""
    for benchmark in runs.benchmarks():
        clusters, name = runs.clusters(benchmark), benchmark_name(benchmark)
        is_known = any(run.samples.images.notna().all() for run in runs.select(benchmark=benchmark))
        if clusters is not None:
            yield (
                f"{name}: {len(clusters):,} documents in {clusters.nunique():,} clusters that share an image or a "
                "question. Intervals and p resample whole clusters."
            )
        elif benchmark_of(benchmark).shares_images and not is_known:
            yield (
                f"{name}: documents of this benchmark share images, and these runs do not tell which. Intervals and p "
                "resample single documents, so they are too narrow. Runs of this version have the hashes."
            )


def _other_numbers(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each benchmark on which runs of the paper's models have other numbers of documents."""
    for benchmark in runs.benchmarks():
        expected = documents(benchmark)
        numbers = {run.documents for run in runs.select(benchmark=benchmark) if family(run.setup.model)}
        if expected is not None and numbers and numbers != {expected}:
            shown = ", ".join(map(str, sorted(numbers)))
            yield (
                f"{benchmark_name(benchmark)}: the paper has {expected} documents and these runs {shown}, so the "
                "differences from the paper are between different documents."
            )


def _on_calibrated(runs: Runs) -> Iterator[str]:
    """Yield a sentence for each run whose threshold was chosen with documents that it is scored on."""
    for run in runs.select():
        if used := int(run.samples.chose_threshold.sum()):
            yield (
                f"{benchmark_name(run.benchmark)}: {used:,} of the {len(run.samples):,} scored answers of "
                f"{runs.name(run.setup)} are about images that chose its threshold, so its score may be too good. "
                "Score it on other documents."
            )
