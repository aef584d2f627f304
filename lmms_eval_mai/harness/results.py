"""Converts outcomes into lmms-eval's results with token counts and trace, and fills lmms-eval's own tables."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.model_utils.usage_metrics import log_usage

from lmms_eval_mai.contract import PROMPTS, SIDES
from lmms_eval_mai.harness.requests import Request
from lmms_eval_mai.harness.totals import Totals
from lmms_eval_mai.method.agreement import extract_answer
from lmms_eval_mai.method.sample import Trace, trace_record
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.outcomes import Outcome

NO_ANSWER = GenerationResult(None)
"""Result of a failed sample. Its text is None: when lmms-eval's response cache reads its own log again, it treats a
blank text as an answer, and null as a missing answer."""


class RoundTexts(list):  # type: ignore[type-arg]
    """The texts of a two-stage task's calls, the answer last. lmms-eval's response cache calls `.strip()` on the text
    of a result (caching/response_cache.py, `_is_valid_response`) and stores it as JSON."""

    def strip(self) -> str:
        return str(self[-1]).strip()


@dataclass
class TraceCounts(TokenCounts):
    """The token counts of a sample. With `--log_samples`, lmms-eval writes its whole trace too."""

    trace: Trace | None = None
    repeats: list["TraceCounts"] = field(default_factory=list)
    """The counts of the document's other repeats. lmms-eval writes only the counts of the first one."""

    @classmethod
    def of(cls, trace: Trace) -> "TraceCounts":
        calls = trace.calls
        return cls(sum(call.prompt_tokens for call in calls), sum(call.output_tokens for call in calls), trace=trace)

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = super().to_dict()
        if self.trace is not None:
            record.update(trace_record(self.trace))
        if self.repeats:
            record["repeats"] = [repeat.to_dict() for repeat in self.repeats]
        return record


def text_of(trace: Trace, request: Request) -> str:
    """Return the text of a one-round request. The filters of our tasks extract the answer from its brackets."""
    answer = trace.answer
    # The filters of other lmms-eval tasks cannot read [[...]], so the answer is extracted here. A call for a short
    # answer has the task's own prompt, which does not ask for brackets.
    has_task_prompt = PROMPTS[answer.key.prompt].is_short or answer.key.prompt == "native"
    is_plain = request.variant is not None or has_task_prompt
    return answer.text if is_plain else extract_answer(answer.text)


def round_texts_of(trace: Trace, request: Request) -> RoundTexts:
    others = [call.text for call in trace.calls if call is not trace.answer and call.key.prompt != "score"]
    answer = trace.answer.text  # exit `confident` has this call only, and its answer is that of both rounds
    return RoundTexts([*(others or [answer]), answer])


def results_of(
    answered: Iterable[tuple[Request, Outcome | None]], text: Callable[[Trace, Request], Any]
) -> list[GenerationResult]:
    """Return the result of each request; `NO_ANSWER` for padding too. `text`: one of the functions above."""
    results, first = [], NO_ANSWER
    for request, outcome in answered:
        one = NO_ANSWER
        if isinstance(outcome, Trace):
            one = GenerationResult(text(outcome, request), TraceCounts.of(outcome))
        results.append(one)
        if request.repeat == 0:
            first = one
        elif isinstance(first.token_counts, TraceCounts) and one.token_counts is not None:
            first.token_counts.repeats.append(one.token_counts)
    return results


def fill_usage(outcomes: Iterable[Outcome], config: Config) -> None:
    """Add the calls of the samples to lmms-eval's usage table, where `by_source` splits it into small and large."""
    models = {engine.side: engine.model for engine in config.engines()}
    for call in (call for outcome in outcomes if isinstance(outcome, Trace) for call in outcome.calls):
        side = call.key.side
        log_usage(models[side], call.key.task, call.prompt_tokens, call.output_tokens, source=side)


def fill_throughput(totals: Totals) -> None:
    """Fill lmms-eval's throughput table with the sums of a run, once: lmms-eval averages repeated calls. A run without
    a wall time has no entry."""
    if (seconds := totals.wall_s) is not None:
        tokens = totals.sum(*(f"{side} tokens" for side in SIDES))
        log_metrics(seconds, tokens, tokens / seconds if seconds else 0.0, {"total_requests": totals.sum("samples")})
