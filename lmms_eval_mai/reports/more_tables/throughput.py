"""The time of finished runs if all calls are batched: what one GPU or two would need at least."""

from collections.abc import Iterator, Mapping

from lmms_eval_mai.contract import Side
from lmms_eval_mai.profiles.throughput import BatchTimes, EngineSeconds, batch_sizes
from lmms_eval_mai.reports.call_times import Profiles, timed_runs
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import OF_RUN, Cell, Column, Table


def throughput_table(evidence: Evidence, profiles: Profiles) -> Iterator[Table]:
    """Yield the engine-seconds of each model at each batch size that its profile has."""
    rows: list[tuple[Cell, ...]] = []
    for benchmark in evidence.benchmarks():
        for run in timed_runs(evidence, benchmark):
            rows += _rows(evidence, profiles, run)
    if rows:
        yield Table(
            key="throughput",
            title="Estimated time of the calls in full batches",
            columns=(
                *OF_RUN,
                Column("batch size", "count"),
                Column("small engine, s"),
                Column("large engine, s"),
                Column("prefill, %"),
                Column("one GPU, s"),
                Column("two GPUs, s"),
                Column("documents per hour, one GPU", digits=0),
            ),
            rows=tuple(rows),
            notes=(
                "Each engine always works on a full batch. Prompt tokens from the prefix cache need no prefill. On one "
                "GPU the engines share it, so their seconds add up; with a GPU for each, the slower engine decides. "
                "This is a lower bound: waiting for the last calls and other work are not included.",
            ),
        )


def _rows(evidence: Evidence, profiles: Profiles, run: Run) -> Iterator[tuple[Cell, ...]]:
    times = profiles.of_run(run)
    if times is None:
        return
    for size in batch_sizes([one.profile for one in times.values()]):
        batched = {side: BatchTimes(one.profile, size) for side, one in times.items()}
        seconds = _engine_seconds(run, batched)
        both = sum((one for one in seconds.values()), EngineSeconds())
        yield (
            benchmark_name(run.benchmark),
            evidence.name(run.method),
            len(run.documents),
            size,
            *(seconds[side].total_s if side in seconds else None for side in ("small", "large")),
            100 * both.prefill_s / both.total_s,
            both.total_s,
            max(one.total_s for one in seconds.values()),
            3600 * len(run.documents) / both.total_s,
        )


def _engine_seconds(run: Run, times: Mapping[Side, BatchTimes]) -> dict[Side, EngineSeconds]:
    found = {side: EngineSeconds() for side in times}
    for document in run.documents:
        for call in document.calls:
            found[call.side] += times[call.side].call(call.prompt_tokens, call.output_tokens, call.cached_tokens)
    return found
