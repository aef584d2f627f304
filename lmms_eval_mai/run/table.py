"""What a run prints and hands to lmms-eval's own tables. Every figure comes from the meter."""

from collections import Counter
from collections.abc import Mapping

from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.model_utils.usage_metrics import log_usage
from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.engines.base import Side
from lmms_eval_mai.paper.sample import EXITS, Exit, Trace
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.metering import Meter, Run, TaskTotals, Usage


def log_call_usage(trace: Trace, models: Mapping[Side, str]) -> None:
    """lmms-eval's usage table: `by_source` splits it into small and large."""
    for call in trace.calls:
        log_usage(
            model_name=models[call.key.side],
            task_name=call.key.task,
            input_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            source=call.key.side,
        )


def log_throughput(run: Run, config: Config) -> None:
    """lmms-eval's throughput table. Called once a run: lmms-eval averages what it is told more than once."""
    meter, wall_s = run.meter, run.wall_s
    usage = {side.side: meter.usage(side.side) for side in config.sides()}
    tokens = sum(one.output_tokens for one in usage.values())
    more: dict[str, float] = {"total_requests": sum(totals.samples for totals in meter.tasks.values())}
    for side, one in usage.items():
        more |= {f"{side}_calls": one.calls, f"{side}_output_tokens": one.output_tokens}
        more |= {f"{side}_cached_tokens": one.cached_tokens, f"{side}_call_seconds": one.seconds}
    more |= {f"exit_{exit}": meter.exits()[exit] for exit in EXITS[config.mode]}
    if meter.failed():
        more["not_answered"] = meter.failed()
    log_metrics(wall_s, tokens, tokens / wall_s if wall_s > 0 else 0.0, more)


def table(run: Run, config: Config, rank: int = 0, world_size: int = 1) -> str:
    """The final table, one row a task: samples, exits, and per engine calls, output tokens and seconds. Where samples
    failed, how many, and of what."""
    meter, exits = run.meter, EXITS[config.mode]
    missing = ["Not answered"] if meter.failed() else []
    writer = MarkdownTableWriter()
    writer.headers = ["Task", "Samples", *missing, *exits] + [
        f"{side.side} {what}" for side in config.sides() for what in ("calls", "output tokens", "call seconds")
    ]
    writer.value_matrix = [
        _row(task, totals, exits, config, bool(missing)) for task, totals in sorted(meter.tasks.items())
    ]
    part = f", rank {rank} of {world_size}" if world_size > 1 else ""
    models = ", ".join(f"{side.side} {side.model}" for side in config.sides())
    earlier = f", {run.earlier_s:.1f} s of them before this start" if run.earlier_s else ""
    lines = [f"Wall time {run.wall_s:.1f} s{earlier}."]
    if missing:
        causes = sum((totals.errors for totals in meter.tasks.values()), Counter())
        lines += [
            f"{meter.failed()} samples have no answer and no part in any score: "
            + ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
            + ".",
            failures(meter),
        ]
    return f"\nmai_cascade mode={config.mode}: {models}{part}\n{writer.dumps()}" + "\n".join(lines) + "\n"


def failures(meter: Meter) -> str:
    """A line for each of the first samples without an answer. The log names all."""
    more = meter.failed() - len(meter.first_errors)
    lines = [f"  {error}" for error in meter.first_errors]
    return "\n".join([*lines, f"  ... and {more:,} more, named in the log above"] if more else lines)


def _row(task: str, totals: TaskTotals, exits: tuple[Exit, ...], config: Config, missing: bool) -> list[str]:
    totals.check(task)
    samples = max(1, totals.samples)
    shares = [f"{totals.exits[exit]} ({totals.exits[exit] / samples:.2%})" for exit in exits]
    figures = [figure for side in config.sides() for figure in _figures(totals.usage[side.side])]
    return [task, str(totals.samples), *([str(totals.errors.total())] if missing else []), *shares, *figures]


def _figures(usage: Usage) -> list[str]:
    return [str(usage.calls), str(usage.output_tokens), f"{usage.seconds:.1f}"]
