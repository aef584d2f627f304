"""Waiting calls, and the batches that are made of them."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from lmms_eval_mai.engines.base import Call, Prompt, Sampling


@dataclasses.dataclass(eq=False)
class Request:
    """One call that waits for its answer."""

    prompt: Prompt
    sampling: Sampling
    input: Any
    """`inputs.ModelInput`."""
    answer: "asyncio.Future[Call]"
    submitted_at: float
    prepared_at: float


def next_batch(waiting: Sequence[Request], limit: int) -> list[Request]:
    """Return the first request, and other requests that can share its batch, at most `limit` in total."""
    if not waiting:
        return []
    first = waiting[0]
    if first.sampling.seed is not None:  # the seed must draw the tokens of one call only
        return [first]
    key = first.input.batch_key()
    matching = [r for r in waiting if r.sampling == first.sampling and r.input.batch_key() == key]
    return matching[:limit]


@dataclasses.dataclass(frozen=True)
class BatchTimes:
    """Times of one batch, on the clock of `time.perf_counter`."""

    began_at: float
    first_token_at: float
    ended_at: float


def to_call(request: Request, row: list[int], tokenizer: Any, eos_token_ids: set[int], times: BatchTimes) -> Call:
    """Return the call of one row of a batch. The row ends with its first end-of-sequence token; padding follows."""
    end = next((position for position, token in enumerate(row) if token in eos_token_ids), None)
    tokens = row if end is None else row[: end + 1]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return Call(
        key=request.prompt.key,
        text=text.rstrip("\ufffd") if end is None else text,  # the limit may cut a character in two
        finish_reason="length" if end is None else "stop",
        prompt_tokens=request.input.length,
        cached_tokens=0,
        output_tokens=len(tokens),
        queued_s=times.began_at - request.prepared_at,
        ttft_s=times.first_token_at - request.submitted_at,
        total_s=times.ended_at - request.submitted_at,
    )
