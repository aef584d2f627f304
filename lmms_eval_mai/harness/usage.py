"""What a run adds to lmms-eval's own usage and throughput tables. All figures come from the meter."""

from collections.abc import Mapping

from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.model_utils.usage_metrics import log_usage

from lmms_eval_mai.engines.base import Side
from lmms_eval_mai.paper.sample import EXITS, Trace
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.metering import RunTotals


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


def log_throughput(totals: RunTotals, config: Config) -> None:
    """lmms-eval's throughput table. Called once a run: lmms-eval averages what it is told more than once."""
    meter, wall_s = totals.meter, totals.wall_s
    usage = {side.side: meter.usage(side.side) for side in config.engines()}
    tokens = sum(one.output_tokens for one in usage.values())
    more: dict[str, float] = {"total_requests": sum(task.samples for task in meter.tasks.values())}
    for side, one in usage.items():
        more |= {f"{side}_calls": one.calls, f"{side}_output_tokens": one.output_tokens}
        more |= {f"{side}_cached_tokens": one.cached_tokens, f"{side}_call_seconds": one.seconds}
    more |= {f"exit_{exit}": meter.exits()[exit] for exit in EXITS[config.mode]}
    if meter.failed():
        more["not_answered"] = meter.failed()
    log_metrics(wall_s, tokens, tokens / wall_s if wall_s > 0 else 0.0, more)
