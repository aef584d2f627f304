"""What the user should know of a run that goes on. Each warning is told once."""

from collections.abc import Mapping

from loguru import logger

from lmms_eval_mai.contract import PROMPTS, Call, Side
from lmms_eval_mai.engines.thinking import thought_first
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.agreement import extract_answer
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.run.config import Config


class Doubts:
    """The warnings of one evaluation."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._told: set[str] = set()
        """The subjects of the warnings that the user knows."""
        self._has_probability = False
        """Whether an engine has reported a probability, which a stop with `sure` needs."""

    def about_threshold(self, engines: Mapping[Side, str]) -> None:
        """Warn of a threshold that was not chosen for this run. `engines`: `Engine.version` of each."""
        config = self.config
        if not config.method.needs_threshold or isinstance(config.min_confidence, float):
            return
        reasons = [f"it is the default {DEFAULT_CONFIDENCE}, which is not calibrated for this pair"]
        if config.calibration is not None and config.calibrated is not None:
            models = {engine.side: engine.model for engine in config.engines()}
            reasons = [*config.calibration.doubts(config.method, models, engines, config.think)]
        if reasons:
            name = f"the threshold of method={config.method.name}"
            remedy = "lmms-eval-mai calibrate chooses a threshold by your own documents"
            self._tell("threshold", f"{name} promises nothing here: {'; '.join(reasons)}. {remedy}.")

    def about_trace(self, trace: Trace, benchmark: str) -> None:
        """Warn of a threshold that was calibrated on other benchmarks, of a thinking before a short answer, and of a
        call that has no thinking though it must have one. Raises `ArgumentError` if an engine does not report the
        probability that the method needs: no answer would ever be sure."""
        calibrated, threshold = self.config.calibrated, trace.min_confidence
        # A request to a server may have a threshold of its own.
        if calibrated and benchmark not in calibrated.documents and threshold == self.config.thresholds.of(benchmark):
            self._tell(
                f"benchmark {benchmark}",
                f"min_confidence={self.config.min_confidence} was chosen with documents of "
                f"{', '.join(calibrated.documents)}, so it promises nothing for other questions ({benchmark}).",
            )
        sides = {stop.sure.partition(".")[0] for stop in trace.settings.method.stops if stop.sure}
        for call in trace.calls:
            self._about_thinking(call)
        for call in trace.calls if sides and not self._has_probability else ():
            is_asked = PROMPTS[call.key.prompt].is_short and call.key.side in sides
            if is_asked and extract_answer(call.text):
                self._check_probability(call, trace.settings.method.name)

    def _about_thinking(self, call: Call) -> None:
        if thought_first(call.key.prompt, call.text, call.thinking):
            self._tell(
                "thought",
                f"{call.key}: the model thought before its short answer ({call.output_tokens} tokens). Either it "
                "always thinks, or its server does not switch the thinking off: if the server reports no context, give "
                "chat_template_kwargs={}; else choose another model or server. The final table counts these calls.",
            )
        elif call.key.prompt == "native" and call.thinking is None:
            remedy = "If it never does, its server drops chat_template_kwargs: give think=R"
            self._tell("no thinking", f"{call.key}: the model did not think. {remedy}.")

    def _check_probability(self, call: Call, method: str) -> None:
        if call.answer_logprob is None:
            side, engine = call.key.side, getattr(self.config, call.key.side).engine
            raise ArgumentError(
                f"method={method} needs the probability of the {side} model's answer, and {side}_engine={engine} did "
                f"not report it for {call.key}. Use an engine or an endpoint that gives log-probabilities (logprobs), "
                "or another method."
            )
        self._has_probability = True

    def _tell(self, subject: str, sentence: str) -> None:
        if subject not in self._told:
            self._told.add(subject)
            logger.warning(f"mai_cascade: {sentence}")
