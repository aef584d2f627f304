"""The calls of one sample. `Pair.call` makes every call of every run; `cascade.py` decides which calls to make.

`OpenSample` records the calls and verifications of one sample, from its first call to its trace.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, get_args

from lmms_eval_mai.contract import (
    AttentionRequest,
    Call,
    CallKey,
    Image,
    Message,
    Model,
    Prompt,
    Sampling,
    Side,
    Stage,
    TokenWeights,
)
from lmms_eval_mai.errors import PromptTooLong, SampleError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import (
    AgreementRules,
    Verification,
    answer_span,
    extract_answer,
    read_answer,
    verify,
    without_answer,
)
from lmms_eval_mai.paper.confidence import Choices, Thresholds, is_sure
from lmms_eval_mai.paper.prompts import TransferAnswer, Variant
from lmms_eval_mai.paper.sample import Exit, LoggedPrompt, Sample, Trace, category_of, logged_prompt
from lmms_eval_mai.paper.sparse import Selection, Sparse, select

R = TypeVar("R")

SCORING = Sampling(max_tokens=1)
"""The decoding of the stage `score`, which needs only the prefill. Its only token is not used."""


class CallStore(Protocol):
    """Finished calls on disk (`run/store.py`)."""

    async def find(self, prompt: Prompt, sampling: Sampling) -> Call | None:
        """Return the finished call of this request, or None."""

    async def add(self, prompt: Prompt, sampling: Sampling, call: Call) -> None:
        """Write a finished call. It is on the disk when this returns. Raises `StoreError`."""


@dataclass(frozen=True)
class CallEvent:
    """A call has begun, is done or has failed. A cancelled call has failed too."""

    key: CallKey
    call: Call | None = None
    """The finished call. None: it is not done."""
    error: BaseException | None = None
    """Why it failed. None: it did not."""


@dataclass(frozen=True)
class Pair:
    """The two VLMs and the user's choices for how they work together."""

    models: Mapping[Side, Model]
    """A mode that calls one model has one entry."""
    think: Variant = "R"
    """Prompt_think of Eq. 7 for tasks that name none themselves: `_s` tasks and other lmms-eval tasks."""
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    choices: Choices = Choices()  # noqa: RUF009 - frozen
    """Of the cascade."""
    thresholds: Thresholds = Thresholds()  # noqa: RUF009 - frozen
    """Of its first check by confidence."""
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
    on_call: Callable[[CallEvent], object] = lambda event: None
    """Gets the events of all calls."""

    async def call(
        self,
        opened: "OpenSample",
        side: Side,
        stage: Stage,
        *text: str,
        thinking: str = "",
        attention: AttentionRequest | None = None,
    ) -> Call:
        """Send the question and the stage's text to one model, and record its answer.

        `text`: the parts of the stage's text. An empty text sends the own prompt of another lmms-eval task instead.
        `thinking`: the reasoning text inside `text`, whose beginning is left out if the prompt is too long for the
        context. Raises the engine's errors, and `StoreError`.
        """
        sample = opened.sample
        sampling = decoding_of(sample, stage)
        key = CallKey(sample.task, sample.doc_id, sample.repeat, side, stage)
        prompt = Prompt(with_stage_text(sample, *text), key, attention, logprobs=stage in ("short", "task"))
        try:
            call = await self._answer(prompt, sampling)
        except PromptTooLong:
            if not thinking or self.on_overflow == "error":
                raise
            # A text that is scored must leave the same space as a text that is transferred.
            answer = sample.sampling["transfer"] if stage == "score" else sampling
            shorter, dropped = await self.models[side].truncate_thinking(prompt, thinking, answer)
            if attention is not None and attention.text is not None:
                attention = replace(attention, text=shorter)
            text = tuple(part.replace(thinking, shorter, 1) for part in text)
            prompt = Prompt(with_stage_text(sample, *text), key, attention, prompt.logprobs)
            call = replace(await self._answer(prompt, sampling), dropped_tokens=dropped)
        opened.calls.append(call if call.attention is None else replace(call, attention=None))  # hundreds of MB in all
        if self.log_prompts:
            opened.prompts[key] = logged_prompt(with_stage_text(sample, "".join(text)))
        return call

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Return the finished call of this prompt: from the store, or from the model, counted and stored."""
        if self.store is not None and (stored := await self.store.find(prompt, sampling)) is not None:
            return stored
        model = self.models[prompt.key.side]
        self.on_call(CallEvent(prompt.key))
        try:
            call = counted(await model.generate(prompt, sampling), model)
            if self.store is not None:
                await self.store.add(prompt, sampling, call)
        except BaseException as error:
            self.on_call(CallEvent(prompt.key, error=error))
            raise
        self.on_call(CallEvent(prompt.key, call))
        return call


def counted(call: Call, model: Model) -> Call:
    """Return the call with what is computed in the same way for all engines: the time at which it was made, the tokens
    of its answer, and the probability that the model gave to its answer."""
    answer_tokens = 0 if call.key.stage == "score" else call.answer_tokens  # the only token of a score is not used
    if answer_tokens is None:
        answer_tokens = model.count_tokens(extract_answer(call.text))
    return replace(
        call,
        answer_tokens=answer_tokens,
        started_at=time.time() - call.total_s,  # of the last attempt, if the call was retried
        answer_logprob=call.answer_logprob if call.logprobs is None else answer_logprob(call),
        logprobs=None,
    )


def answer_logprob(call: Call) -> float | None:
    """Return the sum of the log-probabilities of the answer's tokens, with 6 digits. None: there is no answer.

    A token that has a part of the answer counts as a whole. A token without a text may be a part of a character. If the
    answer is not found among the tokens, all of them count.
    """
    assert call.logprobs is not None
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
    return round(math.fsum(values), 6) if values else None


@dataclass
class OpenSample:
    """A sample while it is answered: its calls, its verifications, and its trace at the end."""

    sample: Sample
    pair: Pair
    calls: list[Call] = field(default_factory=list)
    prompts: dict[CallKey, LoggedPrompt] = field(default_factory=dict)
    """The prompt of each call, if the trace holds them."""
    verifications: list[Verification] = field(default_factory=list)
    selection: Selection | None = None
    thought: str | None = None
    """The parsed answer after the thinking of Full RT, which does not verify it."""
    min_confidence: float | None = None
    """The threshold, if the first check used one."""

    @property
    def think(self) -> Variant:
        """Return the thinking prompt: the task's own E or R, else that of the pair."""
        variant = self.sample.variant
        return variant if variant in ("E", "R") else self.pair.think

    def reference(self, thinking: Call) -> str:
        """Return what the transfer prompt has of the small model's thinking: the whole response, or the response
        without its `[[answer]]`."""
        choice = self.pair.transfer_answer or prompts.transfer_answer(self.sample.benchmark.name)
        return thinking.text if choice == "keep" else without_answer(thinking.text)

    def select(self, attention: TokenWeights, sparse: Sparse) -> Selection:
        """Select the key tokens of the thinking (Eq. 12) for the trace. The large model's tokenizer counts the tokens
        of the selected text again. Raises `SampleError` if a weight is not a number."""
        try:
            found = select(attention.tokens, attention.weights, sparse)
        except ValueError as error:
            task, doc_id = self.sample.task, self.sample.doc_id
            raise SampleError(
                f"{task} document {doc_id}: the {sparse.source} model gave attention weights that cannot be used "
                f"({error}). Try {sparse.source}_dtype=float32, or transfer=full."
            ) from error
        counted = self.pair.models["large"].count_tokens(found.text)
        self.selection = replace(found, layer=sparse.layer, transferred_tokens=counted)
        return self.selection

    def agree(self, small: Call, large: Call) -> bool:
        """Verify the small model's answer with the large model's (Section 4.1) and record the verification."""
        result = verify(self.sample.benchmark, self.sample.doc, small.text, large.text, self.pair.rules)
        self.verifications.append(result)
        return result.agree

    def read_thought(self, thinking: Call) -> None:
        """Record the answer after the small model's thinking, so that a report can tell what a cascade would do."""
        self.thought = read_answer(self.sample.benchmark, self.sample.doc, thinking.text)

    def is_confident(self, large: Call) -> bool:
        """Return whether the large model gave its short answer a probability of at least the threshold, and the scorer
        can read the answer."""
        sample = self.sample
        self.min_confidence = self.pair.thresholds.of(sample.benchmark.name)
        is_readable = read_answer(sample.benchmark, sample.doc, large.text) is not None
        return is_sure(large, self.min_confidence) and is_readable

    def finish(self, exit: Exit, answer: Call) -> Trace:
        """Return the trace. Its calls are in the order of the stages, because short answers may finish in any order."""
        stages = get_args(Stage)
        calls = sorted(self.calls, key=lambda call: (stages.index(call.key.stage), call.key.side == "large"))
        sample = self.sample
        is_own_task = sample.variant is not None
        parsed = read_answer(sample.benchmark, sample.doc, answer.text) if is_own_task else None
        parts = (part for message in sample.question for part in message.content)
        return Trace(
            exit,
            answer,
            tuple(calls),
            tuple(self.verifications),
            readable=parsed is not None if is_own_task else bool(extract_answer(answer.text)),
            prompts=tuple(self.prompts[call.key] for call in calls) if self.pair.log_prompts else (),
            selection=self.selection,
            min_confidence=self.min_confidence,
            thought=self.thought,
            parsed=parsed,
            images=tuple(part.uuid for part in parts if isinstance(part, Image)),
            category=category_of(sample.doc),
        )


def decoding_of(sample: Sample, stage: Stage) -> Sampling:
    """Return how a stage is decoded."""
    return SCORING if stage == "score" else sample.sampling[stage]


def with_stage_text(sample: Sample, *text: str) -> tuple[Message, ...]:
    """Return the chat with the stage's text at its very end. An empty text stands for the own prompt of another
    lmms-eval task."""
    if not any(text):
        return sample.own_prompt
    *messages, last = sample.question
    return (*messages, Message(last.role, (*last.content, *text)))


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all coroutines at the same time and return their results. If one fails, or the caller is cancelled, cancel
    the others, wait for their end and raise the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
