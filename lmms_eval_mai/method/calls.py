"""One call of a sample. `Pair.call` makes every call of every run; `run.py` decides which calls to make."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

from lmms_eval_mai.contract import (
    PROMPTS,
    AttentionRequest,
    Call,
    CallKey,
    CallPrompt,
    Message,
    Model,
    Prompt,
    Reply,
    Sampling,
    Side,
    Variant,
)
from lmms_eval_mai.errors import PromptTooLong
from lmms_eval_mai.method.agreement import AgreementRules, answer_span, extract_answer, read_answer
from lmms_eval_mai.method.methods import Thresholds
from lmms_eval_mai.method.prompts import TransferAnswer
from lmms_eval_mai.method.sample import Sample, Settings, logged_prompt
from lmms_eval_mai.method.sparse import Sparse
from lmms_eval_mai.method.walk import CallName

R = TypeVar("R")

SCORING = Sampling(max_tokens=1)
"""The decoding of a call `score`, which needs only the prefill. Its only token is not used."""


class CallStore(Protocol):
    """Finished calls on disk (`run/store.py`)."""

    async def find(self, prompt: Prompt, sampling: Sampling) -> Call | None:
        """Return the finished call of this request, or None."""

    async def add(self, prompt: Prompt, sampling: Sampling, call: Call) -> None:
        """Write a finished call. It is on the disk when this returns. Raises `StoreError`."""


@dataclass(frozen=True)
class Pair:
    """The two VLMs and the user's choices for how they work together."""

    models: Mapping[Side, Model]
    """Those that the method asks."""
    settings: Settings = Settings()  # noqa: RUF009 - frozen
    """The method, and what a trace says about the run."""
    think: Variant = "R"
    """Prompt_think of Eq. 7 for tasks that name none themselves: `_s` tasks and other lmms-eval tasks."""
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    thresholds: Thresholds = Thresholds()  # noqa: RUF009 - frozen
    """Of the stops that ask how sure a model is."""
    on_overflow: Literal["truncate", "error"] = "truncate"
    """How to treat thinking that does not fit the context."""
    transfer_answer: TransferAnswer | None = None
    """Whether the transfer has the small model's `[[answer]]`. None: as fits the prompt (`prompts.TRANSFER_ANSWER`)."""
    sparse: Sparse | None = None
    """How the transferred tokens of the thinking are selected (Eq. 12). None: the whole thinking is transferred."""
    log_prompts: bool = False
    """Whether a trace holds the prompt of each call."""
    store: CallStore | None = None
    """None: finished calls are not kept."""
    on_call: Callable[[CallKey, Call | BaseException | None], object] = lambda key, outcome: None
    """Told of each call that the store does not have: when it begins (None), and when it is done or has failed. A
    cancelled call has failed too."""

    async def call(
        self,
        sample: Sample,
        name: CallName,
        *text: str,
        thinking: str = "",
        attention: AttentionRequest | None = None,
    ) -> Call:
        """Send the question and a text to one model. Returns its answer, from the store or from the model.

        `text`: its parts. An empty text sends the `task_prompt` of the sample instead. `thinking`: the
        reasoning inside `text`, whose beginning is left out if the prompt is too long for the context. Raises the
        engine's errors, and `StoreError`.
        """
        sampling, dropped = decoding_of(sample, name.prompt), 0
        key = CallKey(sample.task, sample.doc_id, sample.repeat, name.side, name.prompt, name.of)
        prompt = Prompt(with_text(sample, *text), key, attention, logprobs=PROMPTS[name.prompt].is_short)
        try:
            call = await self._found_or_made(prompt, sampling)
        except PromptTooLong:
            if not thinking or self.on_overflow == "error":
                raise
            # A text that is scored must leave the same space as a text that is transferred.
            answer = sample.sampling["transfer"] if name.prompt == "score" else sampling
            shorter, dropped = await self.models[name.side].truncate_thinking(prompt, thinking, answer)
            if attention is not None:
                attention = replace(attention, text=shorter)
            text = tuple(part.replace(thinking, shorter, 1) for part in text)
            prompt = replace(prompt, messages=with_text(sample, *text), attention=attention)
            call = await self._found_or_made(prompt, sampling)
        return replace(
            call,
            dropped_tokens=dropped,
            parsed=None if name.prompt == "score" else read_answer(sample.benchmark, sample.doc, call.text),
            messages=logged_prompt(with_text(sample, "".join(text))) if self.log_prompts else None,
        )

    async def _found_or_made(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Return the call of the store, or that of the model, which is stored then."""
        if self.store is not None and (stored := await self.store.find(prompt, sampling)) is not None:
            return stored
        model = self.models[prompt.key.side]
        self.on_call(prompt.key, None)
        try:
            call = counted_call(prompt.key, await model.generate(prompt, sampling), model)
            if self.store is not None:
                await self.store.add(prompt, sampling, call)
        except BaseException as error:
            self.on_call(prompt.key, error)
            raise
        self.on_call(prompt.key, call)
        return call


def counted_call(key: CallKey, reply: Reply, model: Model) -> Call:
    """Return the call of a reply, with what is computed in the same way for all engines: the time at which it was made,
    the tokens of its answer, and the probability that the model gave to its answer."""
    answer_tokens = 0 if key.prompt == "score" else reply.answer_tokens  # the only token of a score is not used
    if answer_tokens is None:
        answer_tokens = model.count_tokens(extract_answer(reply.text))
    return Call.of(
        reply,
        key=key,
        answer_tokens=answer_tokens,
        started_at=time.time() - reply.total_s,  # of the last attempt, if the call was retried
        answer_logprob=reply.answer_logprob if reply.logprobs is None else answer_logprob(reply),
        logprobs=None,
    )


def answer_logprob(reply: Reply) -> float | None:
    """Return the sum of the log-probabilities of the answer's tokens, with 6 digits. None: there is no answer.

    A token that has a part of the answer counts as a whole. A token without a text may be a part of a character. If the
    answer is not found among the tokens, all of them count.
    """
    assert reply.logprobs is not None
    # Engines differ in what they show of the tokens after the answer: the end token, and a stop text.
    shown = "".join(reply.logprobs.texts)
    span = answer_span(reply.text if shown.startswith(reply.text) else shown)
    values = []
    if span is not None:
        start, end, position = *span, 0
        for text, value in zip(reply.logprobs.texts, reply.logprobs.values, strict=True):
            if position < end and (position + len(text) > start or position >= start):
                values.append(value)
            position += len(text)
    if not values and extract_answer(reply.text):
        values = list(reply.logprobs.values)
    return round(math.fsum(values), 6) if values else None


def decoding_of(sample: Sample, prompt: CallPrompt) -> Sampling:
    return SCORING if prompt == "score" else sample.sampling[prompt]


def with_text(sample: Sample, *text: str) -> tuple[Message, ...]:
    """Return the chat with the text of a call at its very end. An empty text stands for the `task_prompt`
    of the sample."""
    if not any(text):
        return sample.task_prompt
    *messages, last = sample.question
    return (*messages, Message(last.role, (*last.content, *text)))


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all coroutines at the same time and return their results. If one fails, or the caller is cancelled, cancel
    the others, wait for their end and raise the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return [task.result() for task in tasks]
