"""Estimates of time: the calls of finished runs with the times of profiles, as a `Report`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports import reading
from lmms_eval_mai.reports.build import summaries
from lmms_eval_mai.reports.call_times import Profiles, has_calls
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.prediction import prediction_table
from lmms_eval_mai.reports.more_tables.throughput import throughput_table
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.paper_tables.latency import time_tables
from lmms_eval_mai.reports.report import Report

NO_BATCHES = (
    "The time in full batches needs profiles with batch sizes: lmms-eval-mai profile measures them, and the paper does "
    "not have them."
)


def estimate(folders: Sequence[Path], profiles: Profiles) -> Report:
    """Return the estimated times of all runs in the folders. Raises `ArgumentError` if there is no run with a trace, or
    none whose models have profiles."""
    found = reading.read(folders)
    evidence = Evidence(found.runs)
    traced = [run for run in evidence.runs.values() if has_calls(run)]
    if not traced:
        raise ArgumentError(
            f"{', '.join(map(str, folders))}: no run has the calls of its documents. Run mai_cascade with "
            "--log_samples."
        )
    missing = list(dict.fromkeys(model for run in traced for model in profiles.missing(run)))
    tables = list(time_tables(evidence, profiles))
    if not tables:
        known = ", ".join(one.model for one in profiles.profiles)
        raise ArgumentError(
            f"No profile is of {' or '.join(missing)}: the profiles are of {known}. Measure it with lmms-eval-mai "
            "profile, or choose the profiles with --small and --large."
        )
    batched = list(throughput_table(evidence, profiles))
    gaps = [*found.gaps, *evidence.gaps, *_untimed(evidence, profiles), *([] if batched else [NO_BATCHES])]
    tables += prediction_table(evidence, profiles)
    return Report((), (*tables, *batched), (), summaries(evidence), tuple(dict.fromkeys(gaps)))


def _untimed(evidence: Evidence, profiles: Profiles) -> Iterator[str]:
    """Yield a sentence for each run that has no estimate."""
    for run in evidence.runs.values():
        name = f"{evidence.name(run.method)} on {benchmark_name(run.benchmark)}"
        if not has_calls(run):
            yield f"{name} has no estimate, because its samples have no calls."
        elif missing := profiles.missing(run):
            yield f"{name} has no estimate, because no profile is of {' and '.join(missing)}."
