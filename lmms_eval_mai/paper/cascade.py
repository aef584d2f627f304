"""The algorithm: Section 4 of the paper, one async function per mode. No lmms-eval, no vLLM.

Each function takes one sample its whole way; many run at once, and none waits for another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args

from lmms_eval_mai.engines.base import Call, CallKey, Engine, Message, Prompt, Side, Stage
from lmms_eval_mai.errors import PromptTooLong
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import AgreementRules, Verification, verify
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import Exit, Sample, Trace


class Ask(Protocol):
    """One model of a sample's walk."""

    def __call__(self, stage: Stage, text: str, thinking: str = "") -> Awaitable[Call]:
        """Ask it with the stage's text, which may hold thinking."""


@dataclass(frozen=True)
class Pair:
    """The two VLMs, and what the user chose about how they work together. In the modes `small` and `large`
    only the engine of that name is ever called."""

    small: Engine
    large: Engine
    think: Variant = "R"
    """Promptthink of Eq. 7, for tasks that do not name one themselves (`_s` tasks and tasks that are not ours)."""
    rules: AgreementRules = AgreementRules()  # noqa: RUF009 - frozen
    on_overflow: str = "truncate"
    """What to do with thinking that does not fit the context: truncate or error."""


async def cascade(sample: Sample, pair: Pair) -> Trace:
    """Multi-agent inference (MAI): mutual verification, then reasoning transfer. Figure 2 (c), Table 10."""
    walk = SampleRun(sample, pair)
    simple = prompts.instruction("S", sample.kind)

    large_short, small_short = await gather_or_cancel(
        walk.large("short", simple), walk.small("short", simple)
    )  # Eq. 5, 6
    if walk.agree(small_short, large_short):
        return walk.leave("agree_short", large_short)

    thinking, thought = await _think(walk, walk.small)  # Eq. 7, 8
    if walk.agree(thought, large_short):
        return walk.leave("agree_think", large_short)

    return walk.leave("transfer", await _transfer(walk, thinking))  # Eq. 9


async def transfer(sample: Sample, pair: Pair) -> Trace:
    """Full RT, the baseline of Tables 8, 10 and 11: the small model always thinks, the large one always answers."""
    walk = SampleRun(sample, pair)
    thinking = await walk.small("think", prompts.instruction(walk.think, sample.kind))  # Eq. 7
    return walk.leave("transfer", await _transfer(walk, thinking))  # Eq. 9


async def small(sample: Sample, pair: Pair) -> Trace:
    """The small model alone with the task's own prompt: 2B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""
    return await _alone(sample, pair, "small")


async def large(sample: Sample, pair: Pair) -> Trace:
    """The large model alone with the task's own prompt: 8B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""
    return await _alone(sample, pair, "large")


MODES: dict[str, Callable[[Sample, Pair], Awaitable[Trace]]] = {
    "cascade": cascade,
    "transfer": transfer,
    "small": small,
    "large": large,
}


async def _think(walk: "SampleRun", ask: Ask) -> tuple[Call, Call]:
    """(thinking, the call that holds the thought answer), of the small model in the cascade.

    The two are one call where the thinking itself is used for verification ("adopting Rs_think in lieu of
    As_think", end of Section 4.2), and two in the two-stage form of Appendix B.3.
    """
    kind = walk.sample.kind
    thinking = await ask("think", prompts.instruction(walk.think, kind))
    if not walk.sample.two_stage:
        return thinking, thinking
    return thinking, await ask("stage2", prompts.stage2(thinking.text, kind), thinking.text)


async def _transfer(walk: "SampleRun", thinking: Call) -> Call:
    sample = walk.sample
    text = prompts.transfer(sample.benchmark.name, thinking.text, sample.kind)
    return await walk.large("transfer", text, thinking.text)


async def _alone(sample: Sample, pair: Pair, side: Side) -> Trace:
    walk = SampleRun(sample, pair)
    ask = walk.small if side == "small" else walk.large
    if sample.variant is None:
        return walk.leave(side, await ask("task", ""))
    if sample.variant == "S":
        return walk.leave(side, await ask("short", prompts.instruction("S", sample.kind)))
    _, answer = await _think(walk, ask)  # Eq. 7 for the small model, Eq. 10 for the large one; Eq. 8
    return walk.leave(side, answer)


@dataclass
class SampleRun:
    """One sample on its way: asks the engines and keeps what happened."""

    sample: Sample
    pair: Pair
    calls: list[Call] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)

    @property
    def think(self) -> Variant:
        variant = self.sample.variant
        return variant if variant in ("E", "R") else self.pair.think

    async def small(self, stage: Stage, text: str, thinking: str = "") -> Call:
        return await self._ask(self.pair.small, "small", stage, text, thinking)

    async def large(self, stage: Stage, text: str, thinking: str = "") -> Call:
        return await self._ask(self.pair.large, "large", stage, text, thinking)

    async def _ask(self, engine: Engine, side: Side, stage: Stage, text: str, thinking: str) -> Call:
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
        self.calls.append(call)
        return call

    def agree(self, small: Call, large: Call) -> bool:
        result = verify(self.sample.benchmark, self.sample.doc, small.text, large.text, self.pair.rules)
        self.verifications.append(result)
        return result.agree

    def leave(self, exit: Exit, answer: Call) -> Trace:
        stages = get_args(Stage)  # short answers finish in any order: the trace has one
        calls = sorted(self.calls, key=lambda call: (stages.index(call.key.stage), call.key.side == "large"))
        return Trace(exit, answer, tuple(calls), tuple(self.verifications))


def with_stage_text(sample: Sample, text: str) -> tuple[Message, ...]:
    """The chat with the stage's text at its very end: the prefix stays the same for all calls of a sample."""
    *messages, last = sample.question
    if not text:
        return sample.question
    if sample.variant is None:  # the questions of our own tasks end with a line break
        text = "\n" + text
    return (*messages, Message(last.role, (*last.content, text)))


async def gather_or_cancel(first: Coroutine[Any, Any, Call], second: Coroutine[Any, Any, Call]) -> tuple[Call, Call]:
    """Run two calls at once; if one fails, stop the other."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
