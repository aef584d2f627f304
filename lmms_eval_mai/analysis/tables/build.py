"""Builds a report: reads the folders, makes the tables, and tells what is missing."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lmms_eval_mai.analysis.paper_numbers import benchmark_name, documents, family
from lmms_eval_mai.analysis.report import Report
from lmms_eval_mai.analysis.runs.folders import read_runs
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import paper_tables, seconds, summary
from lmms_eval_mai.errors import ArgumentError

SUMMARY = (summary.method_table, summary.comparison_table)
"""The tables of every report."""
TABLE_11 = "11"
"""The table that needs a profile."""
CHOICES = ("paper", "all", *paper_tables.NUMBERS)
"""What `tables` may name."""


def read(folders: Sequence[Path]) -> Runs:
    """Return the runs in the folders. Raises `ArgumentError` if a folder does not exist, or if there is no run."""
    runs, gaps = read_runs(folders)
    if not runs:
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: there is no run of lmms-eval. Run lmms-eval with --output_path and "
            f"--log_samples, and give that path. {' '.join(gaps)}"
        )
    return Runs(runs, gaps)


def of_runs(runs: Runs, tables: Collection[str] = ("all",), profile: seconds.Profile | None = None) -> Report:
    """Return the report of the runs. `tables`: what to add to the summary, of `CHOICES`. `profile`: the times of Table
    11; None: the paper's."""
    chosen = paper_tables.NUMBERS if {"paper", "all"} & {*tables} else tables
    made = [table for make in SUMMARY for table in make(runs)]
    made += paper_tables.tables(runs, chosen, profile or seconds.of_paper())
    common = ", ".join(f"{name}={value}" for name, value in runs.common_options())
    legend = (f"Options of all methods: {common}",) if common else ()
    resampled = filter(None, map(runs.resampling, runs.benchmarks()))
    return Report(tuple(made), (*runs.gaps, *resampled, *_other_numbers(runs), *_on_calibrated(runs)), legend)


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
