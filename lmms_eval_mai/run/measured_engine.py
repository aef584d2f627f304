"""Adds to each call what is computed in the same way for all kinds of engines: the time at which it was made, and how
sure the model was of its answer."""

import time
from dataclasses import replace

from lmms_eval_mai.contract import Call, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.paper.agreement import answer_span, extract_answer


class MeasuredEngine(EngineWrapper):
    """An engine whose calls have `started_at`, and `answer_logprob` and `min_logprob` if the engine reports the
    log-probabilities of tokens."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises the engine's errors."""
        call = await self._engine.generate(prompt, sampling)
        # From the end, because a call that was retried began with its last attempt.
        return replace(with_answer_logprob(call), started_at=time.time() - call.total_s)


def with_answer_logprob(call: Call) -> Call:
    """Return the call with the log-probabilities of its answer instead of those of all tokens.

    A token that has a part of the answer counts as a whole. A token without a text may be a part of a character. If the
    answer is not found among the tokens, all of them count. The sum has 6 digits, in a run as in its traces.
    """
    if call.logprobs is None:
        return call
    # Engines differ in what they show of the tokens after the answer: the end token, and a stop text.
    shown = "".join(call.logprobs.texts)
    span = answer_span(call.text if shown.startswith(call.text) else shown)
    values = []
    if span is not None:
        start, end, position = *span, 0
        for text, value in zip(call.logprobs.texts, call.logprobs.values, strict=True):
            if position < end and (position + len(text) > start or position >= start):
                values.append(value)
            position += len(text)
    if not values and extract_answer(call.text):
        values = list(call.logprobs.values)
    if not values:
        return replace(call, logprobs=None)
    return replace(call, logprobs=None, answer_logprob=round(sum(values), 6), min_logprob=round(min(values), 6))
