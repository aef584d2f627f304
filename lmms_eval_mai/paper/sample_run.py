"""The run of one sample: its calls to the two models and its verifications. `cascade.py` decides which calls to make.

Also here: the pair of models, and what happens to thinking that does not fit a model's context.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from lmms_eval_mai.contract import (
    AttentionRequest,
    Call,
    CallKey,
    Engine,
    Image,
    Message,
    Prompt,
    Sampling,
    Side,
    Stage,
    TokenWeights,
)
from lmms_eval_mai.errors import PromptTooLong, SampleError
from lmms_eval_mai.paper.agreement import AgreementRules, Doc, Verification, extract_answer, read_answer, verify
from lmms_eval_mai.paper.confidence import FirstCheck, probability
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import Exit, LoggedPrompt, Sample, Trace, logged_prompt
from lmms_eval_mai.paper.sparse import Selection, Sparse, select

R = TypeVar("R")

SCORING = Sampling(max_tokens=1)
"""The decoding of the stage `score`, which needs only the prefill. Its only token is not used."""


@dataclass(frozen=True)
class Pair:
    """The two VLMs and the user's choices for how they work together."""

    small: Engine | None
    """None: the mode does not call it. `large` likewise."""
    large: Engine | None
    think: Variant = "R"
    """Prompt_think of Eq. 7 for tasks that name none themselves: `_s` tasks and other lmms-eval tasks."""
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    first_check: FirstCheck = FirstCheck()  # noqa: RUF009 - frozen
    on_overflow: str = "truncate"
    """How to treat thinking that does not fit the context: `truncate` or `error`."""
    transfer_answer: Literal["cut", "keep"] = "cut"
    """Whether the transfer has the small model's thinking without its `[[answer]]` (`cut`) or with it (`keep`)."""
    sparse: Sparse | None = None
    """How the transferred tokens of the thinking are selected (Eq. 12). None: the whole thinking is transferred."""
    log_prompts: bool = False
    """Whether a trace holds the prompt of each call."""

    def engine(self, side: Side) -> Engine:
        """Return one of the two engines, which the mode calls."""
        engine = self.small if side == "small" else self.large
        assert engine is not None, f"this pair has no {side} engine"
        return engine


@dataclass
class SampleRun:
    """One sample while it runs. Makes its calls and records them for the trace."""

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

    async def call(
        self, side: Side, stage: Stage, *text: str, thinking: str = "", attention: AttentionRequest | None = None
    ) -> Call:
        """Send the question and the stage's text to one model.

        `text`: the parts of the stage's text. An empty text sends the own prompt of another lmms-eval task instead.
        `thinking` is the reasoning text of a model inside `text`; empty if there is none. If the prompt is too long
        for the context, the beginning of this reasoning text is left out, or its lightest tokens if it has the heaviest
        first. Raises the engine's errors. Raises `PromptTooLong` if the prompt is too long even without thinking, or if
        `on_overflow` is `error`.
        """
        engine = self.pair.engine(side)
        sample = self.sample
        sampling = decoding_of(sample, stage)
        key = CallKey(sample.task, sample.doc_id, sample.repeat, side, stage)
        prompt = Prompt(with_stage_text(sample, *text), key, attention)
        try:
            call = await engine.generate(prompt, sampling)
        except PromptTooLong:
            if not thinking or self.pair.on_overflow == "error":
                raise
            # A text that is scored must leave the same space as a text that is transferred.
            answer = sample.sampling["transfer"] if stage == "score" else sampling
            shorter, dropped = await self._shortened(engine, prompt, text, thinking, answer)
            if attention is not None and attention.text is not None:
                attention = replace(attention, text=shorter)
            text = tuple(part.replace(thinking, shorter, 1) for part in text)
            prompt = Prompt(with_stage_text(sample, *text), key, attention)
            call = replace(await engine.generate(prompt, sampling), dropped_tokens=dropped)
        if stage == "score":  # its only token is not used
            call = replace(call, answer_tokens=0, answer_logprob=None, min_logprob=None)
        elif call.answer_tokens is None:
            call = replace(call, answer_tokens=engine.count_tokens(extract_answer(call.text)))
        # The weights of all samples would need hundreds of MB.
        self.calls.append(call if call.attention is None else replace(call, attention=None))
        if self.pair.log_prompts:
            self.prompts[call.key] = logged_prompt(with_stage_text(sample, "".join(text)))
        return call

    async def _shortened(
        self, engine: Engine, prompt: Prompt, text: Sequence[str], thinking: str, answer: Sampling
    ) -> tuple[str, int]:
        """Return the part of the thinking that fits with the other parts of `text`, and the number of dropped tokens.
        `answer`: the decoding of the answer, which needs space too."""
        selection = self.selection
        if selection is None or not selection.heaviest_first or thinking != selection.text:
            return await engine.truncate_thinking(prompt, thinking, answer)
        # Engines keep the end of a text, so they get the heaviest tokens last.
        lightest_first = "".join(reversed(selection.heaviest_first))
        parts = (part.replace(thinking, lightest_first, 1) for part in text)
        prompt = replace(prompt, messages=with_stage_text(self.sample, *parts))
        end, dropped = await engine.truncate_thinking(prompt, lightest_first, answer)
        return selection.heaviest(len(end)), dropped

    def select(self, attention: TokenWeights, sparse: Sparse) -> Selection:
        """Select the key tokens of the thinking (Eq. 12) and record the selection for the trace. The large model's
        tokenizer counts the tokens of the selected text again. Raises `SampleError` if a weight is not a number."""
        try:
            found = select(attention.tokens, attention.weights[0], sparse)
        except ValueError as error:
            task, doc_id = self.sample.task, self.sample.doc_id
            raise SampleError(
                f"{task} document {doc_id}: the {sparse.source} model gave attention weights that cannot be used "
                f"({error}). Try {sparse.source}_dtype=float32, or transfer=full."
            ) from error
        counted = self.pair.engine("large").count_tokens(found.text)
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
        """Return whether the large model gave its short answer a probability of at least the threshold
        (`confidence.py`). An answer without a probability, and one that the scorer cannot read, is not confident."""
        sample = self.sample
        self.min_confidence = self.pair.first_check.threshold(sample.benchmark.name)
        found = probability(large)
        is_readable = read_answer(sample.benchmark, sample.doc, large.text) is not None
        return found is not None and found >= self.min_confidence and is_readable

    def finish(self, exit: Exit, answer: Call) -> Trace:
        """Return the trace. Its calls are in the order of the stages, because short answers may finish in any order."""
        stages = get_args(Stage)
        calls = sorted(self.calls, key=lambda call: (stages.index(call.key.stage), call.key.side == "large"))
        prompts = tuple(self.prompts[call.key] for call in calls) if self.pair.log_prompts else ()
        sample = self.sample
        is_own_task = sample.variant is not None
        parsed = read_answer(sample.benchmark, sample.doc, answer.text) if is_own_task else None
        return Trace(
            exit,
            answer,
            tuple(calls),
            tuple(self.verifications),
            readable=parsed is not None if is_own_task else bool(extract_answer(answer.text)),
            prompts=prompts,
            selection=self.selection,
            min_confidence=self.min_confidence,
            thought=self.thought,
            parsed=parsed,
            images=tuple(
                part.uuid for message in sample.question for part in message.content if isinstance(part, Image)
            ),
            category=category_of(sample.doc),
        )


def category_of(doc: Doc) -> str | None:
    """Return the kind of a question: POPE, MMBench and shapes have `category`, InfoVQA has `answer_type`."""
    found = doc.get("category") or doc.get("answer_type")
    if isinstance(found, list | tuple):
        found = ", ".join(map(str, found))
    return found if isinstance(found, str) and found else None


def decoding_of(sample: Sample, stage: Stage) -> Sampling:
    """Return how a stage is decoded."""
    return SCORING if stage == "score" else sample.sampling[stage]


def with_stage_text(sample: Sample, *text: str) -> tuple[Message, ...]:
    """Return the chat with the parts of the stage's text at its very end, so that all calls of a sample share the same
    prefix. An empty text stands for the own prompt of another lmms-eval task."""
    if not any(text):
        return sample.own_prompt
    *messages, last = sample.question
    return (*messages, Message(last.role, (*last.content, *text)))


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all coroutines at the same time and return their results.

    If one fails, or the caller is cancelled, cancel the others, wait for their end and raise the first error.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
