"""What the user should know of a run that goes on: each rule yields a key and a sentence, which is told once."""

from collections.abc import Iterator, Mapping

from lmms_eval_mai.contract import PROMPTS, Side
from lmms_eval_mai.engines.thinking import thought_first
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.agreement import extract_answer
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE
from lmms_eval_mai.method.trace import Trace
from lmms_eval_mai.run.config import Config

Doubts = Iterator[tuple[str, str]]


def of_threshold(config: Config, engines: Mapping[Side, str]) -> Doubts:
    """Doubt a threshold that was not chosen for this run. `engines`: `Engine.version` of each."""
    if not config.method.needs_threshold or isinstance(config.min_confidence, float):
        return
    reasons = [f"it is the default {DEFAULT_CONFIDENCE}, which is not calibrated for this pair"]
    if config.calibration is not None and config.calibrated is not None:
        models = {engine.side: engine.model for engine in config.engines()}
        reasons = [*config.calibration.doubts(config.method, models, engines, config.think)]
    if reasons:
        name = f"the threshold of method={config.method.name}"
        remedy = "lmms-eval-mai calibrate chooses a threshold by your own documents"
        yield "threshold", f"{name} promises nothing here: {'; '.join(reasons)}. {remedy}."


def of_trace(config: Config, trace: Trace, benchmark: str) -> Doubts:
    """Doubt a threshold that was calibrated on other benchmarks, a thinking before a short answer, and a call that has
    no thinking though it must have one."""
    calibrated, threshold = config.calibrated, trace.min_confidence
    # A request to a server may have a threshold of its own.
    if calibrated and benchmark not in calibrated.documents and threshold == config.thresholds.of(benchmark):
        yield (
            f"benchmark {benchmark}",
            f"min_confidence={config.min_confidence} was chosen with documents of {', '.join(calibrated.documents)}, "
            f"so it promises nothing for other questions ({benchmark}).",
        )
    for call in trace.calls:
        if thought_first(call.key.prompt, call.text, call.thinking):
            yield (
                "thought",
                f"{call.key}: the model thought before its short answer ({call.output_tokens} tokens). Either it "
                "always thinks, or its server does not switch the thinking off: if the server reports no context, give "
                "chat_template_kwargs={}; else choose another model or server. The final table counts these calls.",
            )
        elif call.key.prompt == "native" and call.thinking is None:
            remedy = "If it never does, its server drops chat_template_kwargs: give think=R"
            yield "no thinking", f"{call.key}: the model did not think. {remedy}."


def has_probability(config: Config, trace: Trace) -> bool:
    """Return whether a trace shows that the engines report the probabilities that the method needs. Raises
    `ArgumentError` if one does not: no answer would ever be sure."""
    asked = {stop.sure.partition(".")[0] for stop in trace.settings.method.stops if stop.sure}
    for call in trace.calls:
        if not PROMPTS[call.key.prompt].is_short or call.key.side not in asked or not extract_answer(call.text):
            continue
        if call.answer_logprob is not None:
            return True
        engine = getattr(config, call.key.side).engine
        raise ArgumentError(
            f"method={trace.settings.method.name} needs the probability of the {call.key.side} model's answer, and "
            f"{call.key.side}_engine={engine} did not report it for {call.key}. Use an engine or an endpoint that "
            "gives log-probabilities (logprobs), or another method."
        )
    return False
