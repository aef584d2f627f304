"""The run of one sample: its calls to the two models and its verifications. `cascade.py` decides which calls to make.

Also here: the pair of models, and what happens to thinking that does not fit a model's context.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from lmms_eval_mai.engines.base import Call, CallKey, Engine, Message, Prompt, Side, Stage
from lmms_eval_mai.errors import PromptTooLong
from lmms_eval_mai.paper.agreement import AgreementRules, Verification, extract_answer, read_answer, verify
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import Exit, LoggedPrompt, Sample, Trace, logged_prompt


@dataclass(frozen=True)
class Pair:
    """The two VLMs and the user's choices for how they work together. The modes `small` and `large` call only the
    engine of that name."""

    small: Engine
    large: Engine
    think: Variant = "R"
    """Prompt_think of Eq. 7 for tasks that name none themselves: `_s` tasks and other lmms-eval tasks."""
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    on_overflow: str = "truncate"
    """How to treat thinking that does not fit the context: `truncate` or `error`."""
    transfer_answer: Literal["cut", "keep"] = "cut"
    """Whether the transfer has the small model's thinking without its `[[answer]]` (`cut`) or with it (`keep`)."""
    log_prompts: bool = False
    """Whether a trace holds the prompt of each call."""


@dataclass
class SampleRun:
    """One sample while it runs. Makes its calls and records them for the trace."""

    sample: Sample
    pair: Pair
    calls: list[Call] = field(default_factory=list)
    prompts: dict[CallKey, LoggedPrompt] = field(default_factory=dict)
    """The prompt of each call, if the trace holds them."""
    verifications: list[Verification] = field(default_factory=list)

    @property
    def think(self) -> Variant:
        """Return the thinking prompt: the task's own E or R, else that of the pair."""
        variant = self.sample.variant
        return variant if variant in ("E", "R") else self.pair.think

    async def call(self, side: Side, stage: Stage, text: str, thinking: str = "") -> Call:
        """Send the question and the stage's text to one model.

        An empty `text` sends the own prompt of another lmms-eval task instead.
        `thinking` is the small model's reasoning text inside `text`; empty if there is none. If the prompt is too long
        for the context, the beginning of this reasoning text is left out. Raises the engine's errors. Raises
        `PromptTooLong` if the prompt is too long even without thinking, or if `on_overflow` is `error`.
        """
        engine = self.pair.small if side == "small" else self.pair.large
        sample = self.sample
        sampling = sample.sampling[stage]
        prompt = Prompt(with_stage_text(sample, text), CallKey(sample.task, sample.doc_id, sample.repeat, side, stage))
        try:
            call = await engine.generate(prompt, sampling)
        except PromptTooLong:
            if not thinking or self.pair.on_overflow == "error":
                raise
            end, dropped = await engine.truncate_thinking(prompt, thinking, sampling)
            shorter = replace(prompt, messages=with_stage_text(sample, text.replace(thinking, end, 1)))
            call = replace(await engine.generate(shorter, sampling), dropped_tokens=dropped)
            prompt = shorter
        if call.answer_tokens is None:
            call = replace(call, answer_tokens=engine.count_tokens(extract_answer(call.text)))
        self.calls.append(call)
        if self.pair.log_prompts:
            self.prompts[call.key] = logged_prompt(prompt.messages)
        return call

    def agree(self, small: Call, large: Call) -> bool:
        """Verify the small model's answer with the large model's (Section 4.1) and record the verification."""
        result = verify(self.sample.benchmark, self.sample.doc, small.text, large.text, self.pair.rules)
        self.verifications.append(result)
        return result.agree

    def finish(self, exit: Exit, answer: Call) -> Trace:
        """Return the trace. Its calls are in the order of the stages, because short answers may finish in any order."""
        stages = get_args(Stage)
        calls = sorted(self.calls, key=lambda call: (stages.index(call.key.stage), call.key.side == "large"))
        prompts = tuple(self.prompts[call.key] for call in calls) if self.pair.log_prompts else ()
        readable = self._is_readable(answer.text)
        return Trace(exit, answer, tuple(calls), tuple(self.verifications), readable, prompts)

    def _is_readable(self, text: str) -> bool:
        if self.sample.variant is None:
            return bool(extract_answer(text))
        return read_answer(self.sample.benchmark, self.sample.doc, text) is not None


def with_stage_text(sample: Sample, text: str) -> tuple[Message, ...]:
    """Return the chat with the stage's text at its very end, so that all calls of a sample share the same prefix. An
    empty text stands for the own prompt of another lmms-eval task."""
    if not text:
        return sample.own_prompt
    *messages, last = sample.question
    return (*messages, Message(last.role, (*last.content, text)))


async def call_both(first: Coroutine[Any, Any, Call], second: Coroutine[Any, Any, Call]) -> tuple[Call, Call]:
    """Make two calls at once. If one fails, cancel the other one and raise the error."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
