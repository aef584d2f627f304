"""The calls of one document: the thinkings, and with Table 9 one answer per layer and control.

They are calls of the run's engines, so they are stored and counted like all others. The thinking is scored once for
all layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lmms_eval_mai.attention.table9 import Answer, random_tokens
from lmms_eval_mai.contract import AttentionRequest, Call, CallKey, Side, TokenWeights
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import parts_without_answer
from lmms_eval_mai.paper.calls import OpenSample, Pair
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sparse import Sparse, cut_to, select

DocKey = tuple[str, int]
"""Task and number of a document."""


@dataclass(frozen=True)
class LoggedThinking:
    """The thinking that an earlier run has logged. It is read instead of making the same calls again."""

    writer: Side
    """The model that wrote it."""
    texts: Mapping[DocKey, str]
    source: str
    """Name of the run."""


@dataclass
class AnalysisCalls:
    """Makes the calls of each document, and keeps what the analysis needs of them.

    It takes the place of the function of the mode (`paper.cascade.MODES`).
    """

    layers: tuple[int, ...] = ()
    """The layers of Table 9. Empty: no Table 9."""
    own_thinking: bool = False
    """Whether the large model thinks too, for the figures."""
    seed: int = 0
    """Seed of the random tokens."""
    logged: LoggedThinking | None = None
    """The thinking of an earlier run. None: both models think now."""
    thinkings: dict[DocKey, Mapping[Side, str]] = field(default_factory=dict)
    """The transferred part of the thinking of each model."""
    answers: dict[DocKey, list[Answer]] = field(default_factory=dict)
    """The answers for Table 9, one for each method and layer."""

    async def __call__(self, sample: Sample, pair: Pair) -> Trace:
        """Make the calls of one document. Raises the errors of the engines."""
        opened = OpenSample(sample, pair)
        from_small = pair.sparse is not None and pair.sparse.source == "small"
        own_output = AttentionRequest(self.layers) if self.layers and from_small else None
        small = await self._reason(opened, "small", own_output)  # Eq. 7
        thinkings: dict[Side, str] = {"small": opened.reference(small)}
        answer = small
        if self.own_thinking:
            answer = await self._reason(opened, "large")  # Eq. 10
            thinkings["large"] = opened.reference(answer)
        self.thinkings[sample.task, sample.doc_id] = thinkings
        if self.layers:
            answer = await self._answer_all(opened, small, thinkings["small"])
        return opened.finish("transfer", answer)

    async def _reason(self, opened: OpenSample, side: Side, attention: AttentionRequest | None = None) -> Call:
        """Return the thinking of a model: the logged one, unless the attention of its last token is needed."""
        sample, logged = opened.sample, self.logged
        if logged is not None and logged.writer == side and attention is None:
            key = CallKey(sample.task, sample.doc_id, sample.repeat, side, "think")
            # It has no cost here, and it is not in the trace.
            return Call(key, logged.texts[sample.task, sample.doc_id], "stop", 0, 0, 0, None, None, 0.0)
        text = prompts.instruction(opened.think, sample.kind)
        return await opened.pair.call(opened, side, "think", text, attention=attention)

    async def _answer_all(self, opened: OpenSample, thinking: Call, reference: str) -> Call:
        """Answer by all methods of Table 9. Returns the answer of full transfer."""
        sample, sparse = opened.sample, opened.pair.sparse
        assert sparse is not None  # its layer is not used
        simple = "" if sample.variant is None else prompts.instruction("S", sample.kind)
        short = await opened.pair.call(opened, "large", "short", simple)  # Eq. 5
        scored, scoring_tokens = await self._score(opened, sparse, thinking, reference)
        transfers = _Transfers(opened)
        found = [
            Answer("simple", None, short.text, 0, 0, short.prompt_tokens, short.prompt_tokens),
            await transfers.answer("full", None, reference, len(scored.tokens)),  # Eq. 9
        ]
        for layer, weights in zip(self.layers, scored.weights, strict=True):
            kept = select(scored.tokens, weights, sparse)  # Eq. 12
            count, tokens = kept.kept_tokens, scored.tokens
            seed = f"{self.seed} {sample.task} {sample.doc_id} {sample.repeat}"
            texts = {
                "sparse": kept.text,
                "random": "".join(tokens[place] for place in random_tokens(len(tokens), count, seed)),
                "last": "".join(tokens[len(tokens) - count :]),
            }
            for name, text in texts.items():
                scoring = scoring_tokens if name == "sparse" else 0
                found.append(await transfers.answer(name, layer, text, count, scoring))  # Eq. 13
        self.answers[sample.task, sample.doc_id] = found
        return transfers.calls[reference]

    async def _score(
        self, opened: OpenSample, sparse: Sparse, thinking: Call, reference: str
    ) -> tuple[TokenWeights, int]:
        """Return the weights of the thinking's tokens, one row per layer, and the prompt tokens of the scoring call."""
        if not reference:
            return TokenWeights((), tuple(() for _ in self.layers)), 0
        if sparse.source == "small":
            assert thinking.attention is not None
            whole = [(0, len(thinking.text))]
            parts = whole if reference == thinking.text else parts_without_answer(thinking.text)
            return cut_to(thinking.attention, parts), 0
        before, after = prompts.transfer_parts(opened.sample.benchmark.name, opened.sample.kind)
        text, request = (before, reference, after), AttentionRequest(self.layers, reference)
        call = await opened.pair.call(opened, "large", "score", *text, thinking=reference, attention=request)
        assert call.attention is not None
        return call.attention, call.prompt_tokens


@dataclass
class _Transfers:
    """Answers with a thinking in the prompt. Layers often keep the same tokens: the same text is sent once."""

    opened: OpenSample
    calls: dict[str, Call] = field(default_factory=dict)

    async def answer(self, method: str, layer: int | None, reference: str, kept: int, scoring: int = 0) -> Answer:
        """Return the answer of a method. `scoring`: prompt tokens of the scoring call that it needs."""
        sample, pair = self.opened.sample, self.opened.pair
        if reference not in self.calls:
            text = prompts.transfer(sample.benchmark.name, reference, sample.kind)
            self.calls[reference] = await pair.call(self.opened, "large", "transfer", text, thinking=reference)
        call = self.calls[reference]
        counted = pair.models["large"].count_tokens(reference)
        return Answer(method, layer, call.text, kept, counted, call.prompt_tokens, call.prompt_tokens + scoring)
