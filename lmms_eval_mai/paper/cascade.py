"""The method of Section 4 of the paper: mutual verification, then reasoning transfer. One async function per mode.

Each function runs one sample from its first call to its trace. Many of them run at once, and none waits for another.
This module knows nothing of lmms-eval and of the kinds of engines.

    Eq. 5    A_short^l = VLM_l(Q + Prompt_simple)               `cascade`, first call
    Eq. 6    A_short^s = VLM_s(Q + Prompt_simple)               `cascade`, second call, at the same time
    Eq. 7    R_think^s = VLM_s(Q + Prompt_think)                `_think`, first call
    Eq. 8    A_think^s = VLM_s(Q + R_think^s + Prompt_simple)   `_think`, second call, in the two-stage form only
    Eq. 9    A_think^l = VLM_l(Q + R_think^s + Prompt_simple)   `_transfer`
    Eq. 10   R_think^l = VLM_l(Q + Prompt_think)                `large`, for tasks with an Explain or Reasoning prompt

Eq. 11 is a bound, which needs no code. Sparse transfer (Eq. 12 and 13) is not implemented.
"""

from collections.abc import Awaitable, Callable

from lmms_eval_mai.engines.base import Call, Side
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import without_answer
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair, SampleRun, call_both


async def cascade(sample: Sample, pair: Pair) -> Trace:
    """Multi-agent inference (MAI), the paper's final proposal: Figure 2 (c), Table 10."""
    run = SampleRun(sample, pair)
    simple = _simple_prompt(sample)

    # Section 4.1, mutual verification of the two short answers (Eq. 5 and 6).
    large_short, small_short = await call_both(run.call("large", "short", simple), run.call("small", "short", simple))
    if run.agree(small_short, large_short):
        return run.finish("agree_short", large_short)

    # The small model thinks, and its new answer is verified with the same short answer (Eq. 7 and 8).
    thinking, thought_answer = await _think(run, "small")
    if run.agree(thought_answer, large_short):
        return run.finish("agree_think", large_short)

    # Section 4.2, reasoning transfer: the large model answers with the small model's thinking in its prompt (Eq. 9).
    return run.finish("transfer", await _transfer(run, thinking))


async def transfer(sample: Sample, pair: Pair) -> Trace:
    """Full RT, the baseline of Tables 8, 10 and 11: the small model always thinks, the large model always answers."""
    run = SampleRun(sample, pair)
    thinking = await run.call("small", "think", prompts.instruction(run.think, sample.kind))  # Eq. 7
    return run.finish("transfer", await _transfer(run, thinking))  # Eq. 9


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
"""Value of the argument `mode` -> its function."""


def _simple_prompt(sample: Sample) -> str:
    """Return Prompt_simple (Eq. 5 and 6). Empty for another lmms-eval task, whose own prompt asks for short answers."""
    return "" if sample.variant is None else prompts.instruction("S", sample.kind)


async def _think(run: SampleRun, side: Side) -> tuple[Call, Call]:
    """Let one model think. Returns the call with the thinking and the call with the answer after it.

    In the one-stage form the two are the same call: "adopting R_think^s in lieu of A_think^s" (end of Section 4.2). In
    the two-stage form (S2, Appendix B.3) a second call gives the answer.
    """
    kind = run.sample.kind
    thinking = await run.call(side, "think", prompts.instruction(run.think, kind))  # Eq. 7; Eq. 10 if side is large
    if not run.sample.two_stage:
        return thinking, thinking
    answer = await run.call(side, "stage2", prompts.stage2(thinking.text, kind), thinking.text)  # Eq. 8
    return thinking, answer


async def _transfer(run: SampleRun, thinking: Call) -> Call:
    """Return the large model's answer to the Reason Transfer prompt (Eq. 9).

    The small model's `[[answer]]` is not transferred, as in Example 3 (Appendix B.6), unless the user keeps it.
    """
    sample = run.sample
    reference = thinking.text if run.pair.transfer_answer == "keep" else without_answer(thinking.text)
    text = prompts.transfer(sample.benchmark.name, reference, sample.kind)
    return await run.call("large", "transfer", text, reference)


async def _alone(sample: Sample, pair: Pair, side: Side) -> Trace:
    """Answer with one model. Another lmms-eval task (`variant` None) keeps its own prompt."""
    run = SampleRun(sample, pair)
    if sample.variant is None:
        return run.finish(side, await run.call(side, "task", _simple_prompt(sample)))
    if sample.variant == "S":
        return run.finish(side, await run.call(side, "short", _simple_prompt(sample)))
    _, answer = await _think(run, side)
    return run.finish(side, answer)
