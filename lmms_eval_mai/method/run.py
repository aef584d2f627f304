"""Runs a method on one sample, from its first call to its trace. Many samples run at once, and none waits for another.

`methods.py` has the steps of each method and the equations of the paper, and `calls.py` makes one call.
"""

from collections.abc import Iterable

from lmms_eval_mai.contract import AttentionRequest, Call, CallPrompt, Side
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.calls import Asked, OpenSample, Pair, gather_or_cancel
from lmms_eval_mai.method.methods import IN_TWO_STAGES, THINKING, VARIANT_OF, Ask, Stop, asks_of, prompt_of
from lmms_eval_mai.method.sparse import Sparse
from lmms_eval_mai.method.trace import Sample, Trace


async def run(sample: Sample, pair: Pair) -> Trace:
    """Run a sample with the method of the pair."""
    opened = OpenSample(sample, pair)
    if pair.method.function is not None:
        trace: Trace = await pair.method.function(opened)
        return trace
    for step in pair.method.steps:
        if isinstance(step, Stop):
            if opened.stops_at(step):
                return opened.finish(step.exit, opened.asked[step.answer].answer)
        else:
            await _ask_together(opened, asks_of(step))
    raise AssertionError(f"{pair.method.name} does not end with a stop that has no condition")


async def _ask_together(opened: OpenSample, asks: Iterable[Ask]) -> None:
    """Make the calls of a step at the same time. Two with the same prompt, such as `explain` and `think` in a task with
    prompt E, are one call."""
    first: dict[tuple[Side, CallPrompt], Ask] = {}
    same: list[Ask] = []
    for one in asks:
        prompt = prompt_of(one, opened.sample.variant, opened.pair.think)
        if first.setdefault((one.side, prompt), one) is not one:
            same.append(one)
    await gather_or_cancel(ask(opened, one) for one in first.values())
    for one in same:
        await ask(opened, one)


async def ask(opened: OpenSample, step: Ask) -> Asked:
    """Make the call of a step, or two calls in the two-stage form. Other steps find the result in `opened.asked`."""
    prompt = prompt_of(step, opened.sample.variant, opened.pair.think)
    if prompt == "transfer":
        asked = Asked(await _transfer(opened, step))
    elif prompt in THINKING:
        asked = await _think(opened, step, prompt)
    else:  # Eq. 5 and 6; another lmms-eval task asks for a short answer by its own prompt
        text = "" if prompt == "task" else prompts.instruction("S", opened.sample.kind)
        asked = Asked(await opened.call(step.side, prompt, text))
    opened.asked[step.name] = asked
    return asked


async def _think(opened: OpenSample, step: Ask, prompt: CallPrompt) -> Asked:
    """Let a model think. Returns the call with the thinking and the call with the answer after it.

    In the one-stage form the two are the same call: "adopting R_think^s in lieu of A_think^s" (end of Section 4.2). In
    the two-stage form (S2, Appendix B.3) a second call gives the answer, if the method uses it. A model that thinks by
    itself answers after its thinking, so it has one stage in all tasks.
    """
    kind, side = opened.sample.kind, step.side
    own = prompt == "native" and opened.sample.variant is None  # another lmms-eval task asks for a short answer itself
    text = "" if own else prompts.instruction(VARIANT_OF[prompt], kind)
    thinking = await opened.call(side, prompt, text)  # Eq. 7; Eq. 10 if the side is large
    if prompt not in IN_TWO_STAGES or not opened.sample.two_stage or not opened.pair.method.is_answer_used(step):
        return Asked(thinking)
    text = prompts.stage2(thinking.text, kind)
    answer = await opened.call(side, "stage2", text, thinking=thinking.text, of=thinking.key.name)  # Eq. 8
    return Asked(thinking, answer)


async def _transfer(opened: OpenSample, step: Ask) -> Call:
    """Return the answer to the Reason Transfer prompt: with the whole thinking (Eq. 9), or with its key tokens
    (Eq. 13)."""
    sample, sparse, thinking = opened.sample, opened.pair.sparse, opened.asked[step.of].thinking
    reference = opened.reference(thinking)
    if sparse is not None and reference:
        reference = await _select(opened, sparse, thinking, reference)  # Eq. 12
    text = prompts.transfer(sample.benchmark.transfer_prompt, reference, sample.kind)
    # Eq. 9; Eq. 13 with transfer=sparse
    return await opened.call(step.side, "transfer", text, thinking=reference, of=thinking.key.name)


async def _select(opened: OpenSample, sparse: Sparse, thinking: Call, reference: str) -> str:
    """Return the key tokens of the thinking as text: Select() of Eq. 12.

    The weights are attention to the thinking: that of the last token of the transfer prompt of Eq. 9 (Section 4.2), in
    the large model (our reading, docs/paper-notes.md). This is a prefill of its own.
    """
    before, after = prompts.transfer_parts(opened.sample.benchmark.transfer_prompt, opened.sample.kind)
    prompt, request = (before, reference, after), AttentionRequest(sparse.layer, reference)
    scored = await opened.call("large", "score", *prompt, thinking=reference, attention=request, of=thinking.key.name)
    assert scored.attention is not None  # by the contract of the engines
    return opened.select(scored.attention, sparse).text
