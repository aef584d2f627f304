"""How well profiles predict the seconds of the calls themselves: only where the calls were made one at a time, on the
same device."""

import statistics
from collections.abc import Iterator

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.reports import paper_profiles
from lmms_eval_mai.reports.call_times import Profiles, timed_runs
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import CallCost, Run
from lmms_eval_mai.reports.report import Cell, Column, Table


def prediction_table(evidence: Evidence, profiles: Profiles) -> Iterator[Table]:
    """Yield the predicted and the measured seconds of the calls. Nothing with the paper's profile: the calls were not
    made on its machine."""
    if profiles.device == paper_profiles.DEVICE:
        return
    rows: list[tuple[Cell, ...]] = []
    for benchmark in evidence.benchmarks():
        for run in timed_runs(evidence, benchmark):
            if not run.derived:
                rows += _rows(evidence, profiles, run)
    if rows:
        yield Table(
            key="prediction",
            title="Predicted and measured time of a call",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("model", "text"),
                Column("calls", "count"),
                Column("predicted, s", digits=3),
                Column("measured, s", digits=3),
                Column("predicted / measured", digits=2),
                Column("median error, %"),
            ),
            rows=tuple(rows),
            notes=(
                "Medians over the calls, with one TTFT. A measured time includes the wait in the queue, so compare "
                "only runs with max_open_samples=1 on the machine of the profile. Calls that are shared with other "
                "runs have no time and are left out. The profile has no cached prompts, so calls with cached prompt "
                "tokens take less time than predicted.",
            ),
        )


def _rows(evidence: Evidence, profiles: Profiles, run: Run) -> Iterator[tuple[Cell, ...]]:
    times = profiles.of_run(run)
    for side in SIDES:
        calls = [call for document in run.documents for call in document.calls if call.side == side and call.seconds]
        if times is None or not calls:
            continue
        yield (
            benchmark_name(run.benchmark),
            evidence.name(run.method),
            side,
            len(calls),
            *_figures(calls, times, side),
        )


def _figures(calls: list[CallCost], times: dict[Side, ProfileTimes], side: Side) -> Iterator[float]:
    predicted, measured = [], []
    for call in calls:
        assert call.seconds
        found = times[side].call(call.prompt_tokens, call.output_tokens, call.image_tokens)
        predicted.append(found.corrected_s)
        measured.append(call.seconds)
    quotients = [one / other for one, other in zip(predicted, measured, strict=True)]
    yield from (statistics.median(values) for values in (predicted, measured, quotients))
    yield 100 * statistics.median(abs(one - 1) for one in quotients)
