"""Adds a run's figures to lmms-eval's own usage and throughput tables."""

from collections.abc import Mapping

from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.model_utils.usage_metrics import log_usage
from loguru import logger

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.metering import RunTotals


def log_call_usage(trace: Trace, models: Mapping[Side, str]) -> None:
    """Add the calls of a sample to lmms-eval's usage table, where `by_source` splits it into small and large."""
    for call in trace.calls:
        log_usage(
            model_name=models[call.key.side],
            task_name=call.key.task,
            input_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            source=call.key.side,
        )


def log_throughput(totals: RunTotals, config: Config) -> None:
    """Fill lmms-eval's throughput table. Call this once per run: lmms-eval averages repeated calls.

    lmms-eval adds up only elapsed time, generated tokens and requests, and writes "avg_" before every other name except
    `avg_speed` (gen_metrics.py, `summarize_logged_metrics`). So all other figures here are averages or shares over
    samples. A run with shared calls has no entry, because its times are not those of its calls.
    """
    total, wall_s = totals.of_all_tasks(), totals.wall_s
    if total.usage_of(*SIDES).shared_calls:
        return
    answered = total.samples
    usage = {engine.side: total.usage_of(engine.side) for engine in config.engines()}
    tokens = sum(one.output_tokens for one in usage.values())
    averages: dict[str, float] = {}
    if answered:
        for side, one in usage.items():
            averages[f"{side}_calls_per_sample"] = one.calls / answered
            averages[f"{side}_output_tokens_per_sample"] = one.output_tokens / answered
            if one.answer_tokens is not None:
                averages[f"{side}_answer_tokens_per_sample"] = one.answer_tokens / answered
            averages[f"{side}_cached_tokens_per_sample"] = one.cached_tokens / answered
            averages[f"{side}_call_seconds_per_sample"] = one.call_seconds / answered
        if len(config.exits()) > 1:
            averages |= {f"exit_{exit}_share": total.exits[exit] / answered for exit in config.exits()}
    if total.failed:
        averages["not_answered_share"] = total.failed / (answered + total.failed)
    speed = tokens / wall_s if wall_s > 0 else 0.0
    # lmms-eval also logs these figures as one line of 900 characters, before the table.
    logger.disable(log_metrics.__module__)
    log_metrics(wall_s, tokens, speed, {"total_requests": answered, **averages})
    logger.enable(log_metrics.__module__)
