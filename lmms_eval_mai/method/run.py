"""Runs a method on one sample, from its first call to its trace. Many samples run at once, and none waits for another.

`methods.py` has the steps of each method and the equations of the paper, `walk.py` walks through them, and `calls.py`
makes one call.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from lmms_eval_mai.contract import PROMPTS, AttentionRequest, Call, Image, TokenWeights
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import extract_answer, without_answer
from lmms_eval_mai.method.calls import Pair, gather_or_cancel
from lmms_eval_mai.method.methods import Ask, Stop
from lmms_eval_mai.method.repeats import without_repeats
from lmms_eval_mai.method.sample import Sample, Trace, category_of
from lmms_eval_mai.method.sparse import Selection, Sparse, select
from lmms_eval_mai.method.walk import AskCalls, CallName, Verifier, calls_of, walk


@dataclass(frozen=True, slots=True)
class Asked:
    """What an `Ask` brought: the call with the thinking, and the call with the answer. They are the same call, except
    in the two-stage form (Eq. 8)."""

    thinking: Call
    answer: Call


@dataclass
class OpenSample:
    """A sample while it is answered."""

    sample: Sample
    pair: Pair
    calls: dict[CallName, Call] = field(default_factory=dict)
    """The calls so far."""
    answers: dict[str, Call] = field(default_factory=dict)
    """Name of an `Ask` -> the call with the answer."""
    selection: Selection | None = None

    @property
    def verifier(self) -> Verifier:
        """Decides at the stops, with the user's choices."""
        sample = self.sample
        return Verifier(sample.benchmark, self.pair.rules, self.pair.thresholds.of(sample.documents_of))

    def stops_at(self, stop: Stop) -> bool:
        """Return whether the conditions of a stop hold."""
        return self.verifier.holds(stop, self.answers)

    def calls_of(self, ask: Ask) -> AskCalls:
        sample, pair = self.sample, self.pair
        return calls_of(ask, pair.settings.method, sample.variant, sample.two_stage, pair.think)

    async def call(
        self, name: CallName, *text: str, thinking: str = "", attention: AttentionRequest | None = None
    ) -> Call:
        """Make a call, unless it is made already: `explain` and `think` are one call in a task with prompt E. The
        arguments and the errors are those of `Pair.call`."""
        if name not in self.calls:
            call = await self.pair.call(self.sample, name, *text, thinking=thinking, attention=attention)
            # A trace must not hold the attention weights, which are hundreds of MB in all.
            self.calls[name] = call if call.attention is None else replace(call, attention=None)
            return call
        return self.calls[name]

    def finish(self, exit: str, answer: Call) -> Trace:
        """Return the trace. Its calls are in the order of their prompts, because short answers may finish in any
        order."""
        sample, pair = self.sample, self.pair
        order = [*PROMPTS]
        calls = sorted(self.calls.values(), key=lambda call: (order.index(call.key.prompt), call.key.side == "large"))
        parts = (part for message in sample.question for part in message.content)
        return Trace(
            exit,
            answer,
            tuple(calls),
            replace(pair.settings, options={**pair.settings.options, **sample.decoding}),
            readable=answer.parsed is not None if sample.variant is not None else bool(extract_answer(answer.text)),
            selection=self.selection,
            min_confidence=self.verifier.threshold if pair.settings.method.needs_threshold else None,
            images=tuple(part.uuid for part in parts if isinstance(part, Image)),
            category=category_of(sample.doc),
        )


async def run_sample(sample: Sample, pair: Pair) -> Trace:
    opened, method = OpenSample(sample, pair), pair.settings.method
    if method.function is not None:
        trace: Trace = await method.function(opened)
        return trace
    for step in walk(method, opened.verifier, opened.answers):
        if isinstance(step, Stop):
            return opened.finish(step.exit, opened.answers[step.answer])
        same: defaultdict[CallName, list[Ask]] = defaultdict(list)
        for one in step:
            same[opened.calls_of(one).thinking].append(one)
        await gather_or_cancel(_ask_in_turn(opened, asks) for asks in same.values())
    raise AssertionError("a walk ends with a stop")


async def _ask_in_turn(opened: OpenSample, asks: Iterable[Ask]) -> None:
    """Make the calls of some asks that share a call."""
    for one in asks:
        await ask(opened, one)


async def ask(opened: OpenSample, step: Ask) -> Asked:
    """Make the calls of an `Ask`."""
    names, form = opened.calls_of(step), opened.sample.answer_form
    if names.source is not None:
        thinking = await _transfer(opened, names, opened.calls[names.source])
    else:
        # Eq. 5 to 7; Eq. 10 if the large model thinks. Another lmms-eval task asks for a short answer itself.
        variant = PROMPTS[names.thinking.prompt].variant
        if variant is None or (variant == "native" and opened.sample.variant is None):
            text = ""
        else:
            text = prompts.instruction(variant, form)
        thinking = await opened.call(names.thinking, text)
    answer = thinking
    if names.answer != names.thinking:  # Eq. 8
        text = without_repeats(thinking).text
        answer = await opened.call(names.answer, prompts.stage2(text, form), thinking=text)
    opened.answers[step.name] = answer
    return Asked(thinking, answer)


async def _transfer(opened: OpenSample, names: AskCalls, source: Call) -> Call:
    """Return the answer to the Reason Transfer prompt: with the whole thinking of `source` (Eq. 9), or with its key
    tokens (Eq. 13)."""
    sample, sparse = opened.sample, opened.pair.sparse
    thinking = transferred_thinking(source, opened)
    if sparse is not None and thinking and names.score is not None:
        thinking = await _select(opened, sparse, names.score, thinking)  # Eq. 12
    text = prompts.transfer(sample.benchmark.transfer_prompt, thinking, sample.answer_form)
    return await opened.call(names.answer, text, thinking=thinking)  # Eq. 9; Eq. 13 with transfer=sparse


def transferred_thinking(call: Call, opened: OpenSample) -> str:
    """Return what the transfer prompt has of a thinking: the whole response, or the response without its
    `[[answer]]`. Of a model's own thinking: the thinking with the answer after it, or without."""
    call = without_repeats(call)
    choice = opened.pair.transfer_answer or prompts.TRANSFER_ANSWER[opened.sample.benchmark.transfer_prompt]
    if call.thinking is not None:
        answer = call.text.strip() if choice == "keep" else ""
        return f"{call.thinking}\n\n{answer}" if answer else call.thinking
    return call.text if choice == "keep" else without_answer(call.text)


async def _select(opened: OpenSample, sparse: Sparse, name: CallName, thinking: str) -> str:
    """Return the key tokens of the thinking as text: Select() of Eq. 12.

    The weights are attention to the thinking: that of the last token of the transfer prompt of Eq. 9 (Section 4.2), in
    the large model (our reading, experiments/attention/README.md). This is a prefill of its own. Raises `SampleError`
    if a weight is not a number.
    """
    sample = opened.sample
    before, after = prompts.transfer_parts(sample.benchmark.transfer_prompt, sample.answer_form)
    request = AttentionRequest(sparse.layer, thinking)
    scored = await opened.call(name, before, thinking, after, thinking=thinking, attention=request)
    weights: TokenWeights | None = scored.attention
    assert weights is not None  # by the contract of the engines
    try:
        selection = select(weights.tokens, weights.weights, sparse)
    except ValueError as error:
        raise SampleError(
            f"{sample.task} document {sample.doc_id}: the large model gave attention weights that cannot be used "
            f"({error}). Try large_dtype=float32, or transfer=full."
        ) from error
    tokens = opened.pair.models["large"].count_tokens(selection.text)  # the large model's tokenizer counts them again
    opened.selection = replace(selection, layer=sparse.layer, transferred_tokens=tokens)
    return selection.text
