"""The calls of one sample. `OpenSample.call` makes every call of every run; `run.py` decides which calls to make."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from lmms_eval_mai.contract import (
    CALL_PROMPTS,
    AttentionRequest,
    Call,
    CallKey,
    CallPrompt,
    Image,
    Message,
    Model,
    Prompt,
    Sampling,
    Side,
    TokenWeights,
)
from lmms_eval_mai.errors import PromptTooLong, SampleError
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import (
    AgreementRules,
    agree,
    answer_span,
    extract_answer,
    read_answer,
    without_answer,
)
from lmms_eval_mai.method.methods import MAI, Method, Stop
from lmms_eval_mai.method.prompts import TransferAnswer, Variant
from lmms_eval_mai.method.sparse import Selection, Sparse, select
from lmms_eval_mai.method.thresholds import Thresholds
from lmms_eval_mai.method.trace import LoggedPrompt, Sample, Settings, Trace, category_of, logged_prompt

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
    """Those that the method asks."""
    method: Method = MAI
    settings: Settings = Settings()  # noqa: RUF009 - frozen
    """What a trace says about the run."""
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
    on_call: Callable[[CallEvent], object] = lambda event: None
    """Gets the events of all calls."""

    async def answer(self, prompt: Prompt, sampling: Sampling) -> Call:
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
    answer_tokens = 0 if call.key.prompt == "score" else call.answer_tokens  # the only token of a score is not used
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


class Asked:
    """What an `Ask` brought: the call with the thinking, and the call with the answer. They are the same call, except
    in the two-stage form (Eq. 8)."""

    def __init__(self, thinking: Call, answer: Call | None = None) -> None:
        self.thinking, self.answer = thinking, answer or thinking


@dataclass
class OpenSample:
    """A sample while it is answered: its calls so far, and its trace at the end."""

    sample: Sample
    pair: Pair
    calls: list[Call] = field(default_factory=list)
    asked: dict[str, Asked] = field(default_factory=dict)
    """Name of an `Ask` -> what it brought."""
    prompts: dict[CallKey, LoggedPrompt] = field(default_factory=dict)
    """The prompt of each call, if the trace holds them."""
    selection: Selection | None = None
    min_confidence: float | None = None
    """The threshold of the run, if a stop has used it."""

    async def call(
        self,
        side: Side,
        prompt: CallPrompt,
        *text: str,
        thinking: str = "",
        of: str = "",
        attention: AttentionRequest | None = None,
    ) -> Call:
        """Send the question and a text to one model, and record its answer.

        `text`: its parts. An empty text sends the own prompt of another lmms-eval task instead. `thinking`: the
        reasoning inside `text`, whose beginning is left out if the prompt is too long for the context. `of`: the call
        that it is from. Raises the engine's errors, and `StoreError`.
        """
        sample, pair = self.sample, self.pair
        sampling = decoding_of(sample, prompt)
        key = CallKey(sample.task, sample.doc_id, sample.repeat, side, prompt, of)
        if attention is None and (same := next((call for call in self.calls if call.key == key), None)):
            return same  # `explain` and `think` are one call in a task with prompt E
        logprobs = prompt in ("simple", "task")
        request = Prompt(with_text(sample, *text), key, attention, logprobs)
        try:
            call = await pair.answer(request, sampling)
        except PromptTooLong:
            if not thinking or pair.on_overflow == "error":
                raise
            # A text that is scored must leave the same space as a text that is transferred.
            answer = sample.sampling["transfer"] if prompt == "score" else sampling
            shorter, dropped = await pair.models[side].truncate_thinking(request, thinking, answer)
            if attention is not None:
                attention = replace(attention, text=shorter)
            text = tuple(part.replace(thinking, shorter, 1) for part in text)
            request = Prompt(with_text(sample, *text), key, attention, logprobs)
            call = replace(await pair.answer(request, sampling), dropped_tokens=dropped)
        if prompt != "score":
            call = replace(call, parsed=read_answer(sample.benchmark, sample.doc, call.text))
        self.calls.append(call if call.attention is None else replace(call, attention=None))  # hundreds of MB in all
        if pair.log_prompts:
            self.prompts[key] = logged_prompt(with_text(sample, "".join(text)))
        return call

    def stops_at(self, stop: Stop) -> bool:
        """Return whether the conditions of a stop hold."""
        if stop.agree and not self.agree(*(self.asked[name].answer for name in stop.agree)):
            return False
        return not stop.sure or self.is_sure(self.asked[stop.sure].answer, stop.min_confidence)

    def agree(self, one: Call, other: Call) -> bool:
        """Return whether both answers parse and are the same (Section 4.1)."""
        return agree(self.sample.benchmark, one.parsed, other.parsed, self.pair.rules)

    def is_sure(self, answer: Call, min_confidence: float | None = None) -> bool:
        """Return whether the model gave its answer a probability of at least the threshold, and the scorer can read
        the answer. `min_confidence`: None: the threshold of the run. False if the engine reported no probability."""
        if min_confidence is None:
            min_confidence = self.min_confidence = self.pair.thresholds.of(self.sample.benchmark.name)
        if answer.parsed is None or answer.answer_logprob is None:
            return False
        # `calibrate` compares logarithms too, so its threshold decides each question as it did there.
        return answer.answer_logprob >= math.log(min_confidence)

    def reference(self, thinking: Call) -> str:
        """Return what the transfer prompt has of the thinking: the whole response, or the response without its
        `[[answer]]`. Of a model's own thinking: the thinking with the answer after it, or without."""
        choice = self.pair.transfer_answer or prompts.TRANSFER_ANSWER[self.sample.benchmark.transfer_prompt]
        if thinking.thinking is not None:
            answer = thinking.text.strip() if choice == "keep" else ""
            return f"{thinking.thinking}\n\n{answer}" if answer else thinking.thinking
        return thinking.text if choice == "keep" else without_answer(thinking.text)

    def select(self, attention: TokenWeights, sparse: Sparse) -> Selection:
        """Select the key tokens of the thinking (Eq. 12) for the trace. The large model's tokenizer counts the tokens
        of the selected text again. Raises `SampleError` if a weight is not a number."""
        try:
            selection = select(attention.tokens, attention.weights, sparse)
        except ValueError as error:
            task, doc_id = self.sample.task, self.sample.doc_id
            raise SampleError(
                f"{task} document {doc_id}: the large model gave attention weights that cannot be used ({error}). Try "
                "large_dtype=float32, or transfer=full."
            ) from error
        counted = self.pair.models["large"].count_tokens(selection.text)
        self.selection = replace(selection, layer=sparse.layer, transferred_tokens=counted)
        return self.selection

    def finish(self, exit: str, answer: Call) -> Trace:
        """Return the trace. Its calls are in the order of their prompts, because short answers may finish in any
        order."""
        sample, pair = self.sample, self.pair
        calls = sorted(self.calls, key=lambda call: (CALL_PROMPTS.index(call.key.prompt), call.key.side == "large"))
        is_own_task = sample.variant is not None
        parts = (part for message in sample.question for part in message.content)
        return Trace(
            exit,
            answer,
            tuple(calls),
            replace(pair.settings, method=pair.method, options={**pair.settings.options, **sample.decoding}),
            readable=answer.parsed is not None if is_own_task else bool(extract_answer(answer.text)),
            prompts=tuple(self.prompts[call.key] for call in calls) if pair.log_prompts else (),
            selection=self.selection,
            min_confidence=self.min_confidence,
            images=tuple(part.uuid for part in parts if isinstance(part, Image)),
            category=category_of(sample.doc),
        )


def decoding_of(sample: Sample, prompt: CallPrompt) -> Sampling:
    """Return how a call is decoded."""
    return SCORING if prompt == "score" else sample.sampling[prompt]


def with_text(sample: Sample, *text: str) -> tuple[Message, ...]:
    """Return the chat with the text of a call at its very end. An empty text stands for the own prompt of another
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
