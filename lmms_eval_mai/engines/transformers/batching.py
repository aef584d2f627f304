"""Waiting calls, the batches that are made of them, and the answers that a batch gives."""

import asyncio
import bisect
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.contract import Call, Prompt, Sampling, TokenLogprobs
from lmms_eval_mai.engines.transformers.token_texts import TokenSpan, texts_of_output

if TYPE_CHECKING:
    from lmms_eval_mai.engines.transformers.inputs import ModelInput


@dataclasses.dataclass(eq=False)
class Request:
    """One call that waits for its answer."""

    prompt: Prompt
    sampling: Sampling
    input: "ModelInput"
    span: TokenSpan | None
    """The tokens of the text to which the call asks for attention. None: it asks for none, or for its own output."""
    answer: "asyncio.Future[Call]"
    submitted_at: float
    prepared_at: float

    def is_scoring_call(self) -> bool:
        """Return whether the call needs a forward pass only, and no decoding."""
        return self.span is not None and self.sampling.max_tokens == 1


def next_batch(waiting: Sequence[Request], limit: int) -> list[Request]:
    """Return the first request, and other requests that can share its batch, at most `limit` in total."""
    first = waiting[0]
    # A seed must draw the tokens of one call only. A scoring call is one forward pass without padding.
    if first.sampling.seed is not None or first.is_scoring_call():
        return [first]
    key = first.input.batch_key()
    matching = [r for r in waiting if r.sampling == first.sampling and r.input.batch_key() == key]
    return [request for request in matching if not request.is_scoring_call()][:limit]


def to_call(
    request: Request,
    row: list[int],
    logprobs: list[float] | None,
    tokenizer: Any,
    eos_token_ids: set[int],
    began_at: float,
    first_token_at: float | None,
    ended_at: float,
) -> Call:
    """Return the call of one row of a batch. The row ends with its first end-of-sequence token; padding follows.
    `logprobs`: the log-probability of each token of the row. None: not known. The three times are those of the batch,
    on the clock of `time.perf_counter`."""
    end = next((position for position, token in enumerate(row) if token in eos_token_ids), None)
    tokens = row if end is None else row[: end + 1]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    stopped = end is not None
    if any(stop in text for stop in request.sampling.stop):
        stopped = True
        tokens, text = _until_stop(tokens, tokenizer, request.sampling.stop)
    reported = None
    if logprobs is not None:
        reported = TokenLogprobs(texts_of_output(tokens, tokenizer), tuple(logprobs[: len(tokens)]))
    return Call(
        key=request.prompt.key,
        text=text if stopped else text.rstrip("\ufffd"),  # the limit may cut a character in two
        finish_reason="stop" if stopped else "length",
        prompt_tokens=request.input.length,
        cached_tokens=0,
        output_tokens=len(tokens),
        queued_s=began_at - request.prepared_at,
        ttft_s=None if first_token_at is None else first_token_at - request.submitted_at,
        total_s=ended_at - request.submitted_at,
        image_tokens=request.input.image_tokens,
        logprobs=reported,
    )


def _until_stop(tokens: list[int], tokenizer: Any, stops: Sequence[str]) -> tuple[list[int], str]:
    """Return the tokens up to the one that completes a stop text, and the text before the stop text. If there are
    several, the one that ends first counts, as in vLLM. At least one must be there."""

    def text_of(count: int) -> str:
        return str(tokenizer.decode(tokens[:count], skip_special_tokens=True))

    counts = range(1, len(tokens) + 1)
    count = counts[bisect.bisect_left(counts, True, key=lambda count: any(stop in text_of(count) for stop in stops))]
    text = text_of(count)
    while text.endswith("\ufffd") and count < len(tokens):  # vLLM waits for the rest of the character
        count += 1
        text = text_of(count)
    first = min((stop for stop in stops if stop in text), key=lambda stop: text.index(stop) + len(stop))
    return tokens[:count], text[: text.index(first)]
