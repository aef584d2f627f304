"""The method of Section 4 of the paper: mutual verification, then reasoning transfer. One async function per mode.

Each function runs one sample from its first call to its trace. Many of them run at once, and none waits for another.

    Eq. 5    A_short^l = VLM_l(Q + Prompt_simple)               `cascade`, first call
    Eq. 6    A_short^s = VLM_s(Q + Prompt_simple)               `cascade`, second call, at the same time
    Eq. 7    R_think^s = VLM_s(Q + Prompt_think)                `_reason`
    Eq. 8    A_think^s = VLM_s(Q + R_think^s + Prompt_simple)   `_think`, in the two-stage form only
    Eq. 9    A_think^l = VLM_l(Q + R_think^s + Prompt_simple)   `_transfer`
    Eq. 10   R_think^l = VLM_l(Q + Prompt_think)                `_reason` of `large`, for tasks with E or R
    Eq. 12   R'_think^s = Select(R_think^s)                     `_select`, with transfer=sparse only
    Eq. 13   A_think^l = VLM_l(Q + R'_think^s + Prompt_simple)  `_transfer`, with transfer=sparse only

Eq. 11 is a bound, which needs no code here. In Eq. 8, 9 and 13, Prompt_simple is the text of Appendix C for that step.
Not in the paper: `verify=confidence` and `both`, `thinker=large`, with which the large model thinks for itself after a
failed first check, `second_check=off`, and `sparse_from=small`.
"""

from collections.abc import Awaitable, Callable

from lmms_eval_mai.contract import AttentionRequest, Call, Side
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import parts_without_answer
from lmms_eval_mai.paper.calls import OpenSample, Pair, gather_or_cancel
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sparse import Sparse, cut_to


async def cascade(sample: Sample, pair: Pair) -> Trace:
    """Multi-agent inference (MAI), the paper's final proposal: Figure 2 (c), Table 10."""
    opened = OpenSample(sample, pair)
    simple = _simple_prompt(sample)

    if pair.choices.verify == "confidence":  # not in the paper: confidence.py
        large_short = await pair.call(opened, "large", "short", simple)
        if opened.is_confident(large_short):
            return opened.finish("confident", large_short)
    else:
        # Section 4.1, mutual verification of the two short answers (Eq. 5 and 6).
        both = (pair.call(opened, side, "short", simple) for side in ("large", "small"))
        large_short, small_short = await gather_or_cancel(both)
        is_sure = pair.choices.verify == "agreement" or opened.is_confident(large_short)
        if opened.agree(small_short, large_short) and is_sure:
            return opened.finish("agree_short", large_short)

    if pair.choices.thinker == "large":  # not in the paper: Eq. 10, only where the first check fails
        _, answer = await _think(opened, "large")
        return opened.finish("large_think", answer)
    if pair.choices.second_check == "off":  # not in the paper: Full RT, only where the first check fails
        return await _full_rt(opened)

    # The small model thinks, and its new answer is verified with the same short answer (Eq. 7 and 8).
    thinking, thought_answer = await _think(opened, "small")
    if opened.agree(thought_answer, large_short):
        return opened.finish("agree_think", large_short)

    # Section 4.2, reasoning transfer: the large model answers with the small model's thinking in its prompt (Eq. 9), or
    # with the key tokens of this thinking (Eq. 12 and 13).
    return opened.finish("transfer", await _transfer(opened, thinking))


async def transfer(sample: Sample, pair: Pair) -> Trace:
    """Reasoning transfer on every sample: Table 8, and "Full RT" of Tables 10 and 11. The small model always thinks,
    and the large model always answers. With transfer=sparse: sparse reasoning transfer, Table 9."""
    return await _full_rt(OpenSample(sample, pair))


async def small(sample: Sample, pair: Pair) -> Trace:
    """The small model alone with the task's own prompt: 2B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""
    return await _alone(sample, pair, "small")


async def large(sample: Sample, pair: Pair) -> Trace:
    """The large model alone with the task's own prompt: 8B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""
    return await _alone(sample, pair, "large")


Mode = Callable[[Sample, Pair], Awaitable[Trace]]
"""Runs one sample from its first call to its trace."""

MODES: dict[str, Mode] = {
    "cascade": cascade,
    "transfer": transfer,
    "small": small,
    "large": large,
}
"""Value of the argument `mode` -> its function."""


def _simple_prompt(sample: Sample) -> str:
    """Return Prompt_simple (Eq. 5 and 6). Empty for another lmms-eval task, whose own prompt asks for short answers."""
    return "" if sample.variant is None else prompts.instruction("S", sample.kind)


async def _think(opened: OpenSample, side: Side) -> tuple[Call, Call]:
    """Let one model think. Returns the call with the thinking and the call with the answer after it.

    In the one-stage form the two are the same call: "adopting R_think^s in lieu of A_think^s" (end of Section 4.2). In
    the two-stage form (S2, Appendix B.3) a second call gives the answer.
    """
    pair, sample = opened.pair, opened.sample
    thinking = await _reason(opened, side)  # Eq. 7; Eq. 10 if side is large
    if not sample.two_stage:
        return thinking, thinking
    stage2 = prompts.stage2(thinking.text, sample.kind)
    answer = await pair.call(opened, side, "stage2", stage2, thinking=thinking.text)  # Eq. 8
    return thinking, answer


async def _full_rt(opened: OpenSample) -> Trace:
    """Let the small model think and the large model answer with this thinking, without a verification."""
    thinking = await _reason(opened, "small")  # Eq. 7
    opened.read_thought(thinking)
    return opened.finish("transfer", await _transfer(opened, thinking))  # Eq. 9, or Eq. 12 and 13


async def _reason(opened: OpenSample, side: Side) -> Call:
    """Return the call with one model's thinking. With `sparse_from=small`, it also has the weights for Eq. 12."""
    pair, sparse = opened.pair, opened.pair.sparse
    text = prompts.instruction(opened.think, opened.sample.kind)
    scores = sparse is not None and sparse.source == side == "small"
    attention = AttentionRequest(sparse.layer) if sparse is not None and scores else None
    return await pair.call(opened, side, "think", text, attention=attention)


async def _transfer(opened: OpenSample, thinking: Call) -> Call:
    """Return the large model's answer to the Reason Transfer prompt: with the whole thinking (Eq. 9), or with its key
    tokens (Eq. 13)."""
    sample, pair, sparse = opened.sample, opened.pair, opened.pair.sparse
    reference = opened.reference(thinking)
    if sparse is not None and reference:
        reference = await _select(opened, sparse, thinking, reference)  # Eq. 12
    text = prompts.transfer(sample.benchmark.name, reference, sample.kind)
    # Eq. 9; Eq. 13 with transfer=sparse
    return await pair.call(opened, "large", "transfer", text, thinking=reference)


async def _select(opened: OpenSample, sparse: Sparse, thinking: Call, reference: str) -> str:
    """Return the key tokens of the thinking as text: Select() of Eq. 12.

    The weights are attention to the thinking: that of the last token of the transfer prompt of Eq. 9 (Section 4.2), in
    the large model (our reading, docs/paper-notes.md). This is a prefill of its own. With `sparse_from=small`, which is
    not in the paper: the attention of the small model's last token, which the call with the thinking has returned.
    """
    pair, scored = opened.pair, thinking
    if sparse.source == "large":
        before, after = prompts.transfer_parts(opened.sample.benchmark.name, opened.sample.kind)
        prompt, request = (before, reference, after), AttentionRequest(sparse.layer, reference)
        scored = await pair.call(opened, "large", "score", *prompt, thinking=reference, attention=request)
    weights = scored.attention
    assert weights is not None  # by the contract of the engines
    if sparse.source == "small" and reference != thinking.text:  # the tokens of the cut answer must not count
        weights = cut_to(weights, parts_without_answer(thinking.text))
    return opened.select(weights, sparse).text


async def _alone(sample: Sample, pair: Pair, side: Side) -> Trace:
    """Answer with one model. Another lmms-eval task (`variant` None) keeps its own prompt."""
    opened = OpenSample(sample, pair)
    if sample.variant is None:
        return opened.finish(side, await pair.call(opened, side, "task", _simple_prompt(sample)))
    if sample.variant == "S":
        return opened.finish(side, await pair.call(opened, side, "short", _simple_prompt(sample)))
    _, answer = await _think(opened, side)
    return opened.finish(side, answer)
