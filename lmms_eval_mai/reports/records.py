"""The runs, documents and samples of lmms-eval's output folders as plain data.

A `Document` has what tables need, a few hundred bytes. A `SampleRecord` has the texts too, and is read again when it is
needed, one at a time.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.paper.agreement import AgreementRules, Verification
from lmms_eval_mai.paper.prompts import Variant

DECODING = ("decoding", "max_new_tokens", "gen_kwargs")
"""Arguments that change every call."""
TRANSFER = (
    "think",
    "transfer_answer",
    "transfer",
    "sparse_delta",
    "sparse_layer",
    "sparse_from",
    "sparse_order",
    "sparse_boundary",
)
"""Arguments that change the thinking or the transfer."""
THINK_E = "think=E"
"""The option of a cascade or Full RT on another lmms-eval task that thinks with the Explain prompt."""
AGREEMENT = ("anls_threshold", "chartqa_match")
"""Arguments that change the verification (`AgreementRules`)."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """One call to a model, without its text."""

    side: Side
    stage: Stage
    output_tokens: int
    answer_tokens: int | None
    prompt_tokens: int
    seconds: float | None
    """None: the call is shared."""
    cut_off: bool
    """Whether a limit cut the answer off."""
    started_at: float | None = None
    """Unix time in seconds. None: the call is shared, or an older version made the run."""
    shared: bool = False
    """Whether another run made the call (`Call.shared`). It has tokens and no times."""
    cached_tokens: int = 0
    """Prompt tokens from the engine's prefix cache."""
    image_tokens: int | None = None
    """Prompt tokens of images. None: not known."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a run, without its texts."""

    doc_id: int
    target: str
    """The gold answer as lmms-eval logs it."""
    score: float | None
    """0 to 1. None: the samples file has no score for the document."""
    labels: tuple[str, str] | None = None
    """POPE: the predicted and the gold label, for F1."""
    group: int | None = None
    """MMBench: the question that this document is a rotation of. lmms-eval counts a question as right if all its
    rotations are right."""
    is_main: bool = True
    """MMBench: whether this is the question in its original order."""
    kind: str = ""
    """The kind of the question: a field of the benchmark, or the form of the gold answer."""
    output_tokens: int | None = None
    """Of all models. None: the run has no token counts."""
    exit: str | None = None
    readable: bool | None = None
    """Whether the scorer can read the final answer."""
    verifications: tuple[Verification, ...] = ()
    calls: tuple[CallCost, ...] = ()
    layer: int | None = None
    """Sparse transfer: the layer whose attention selected the tokens. None: nothing was selected."""
    kept_tokens: int | None = None
    """Sparse transfer: the tokens of the thinking that were kept, of `scored_tokens`."""
    scored_tokens: int | None = None
    thought: str | None = None
    """Full RT on ChartQA and InfoVQA: the small model's answer after its thinking, which Full RT does not compare."""


@dataclass(frozen=True, slots=True)
class CallText:
    """The text of one call."""

    side: Side
    stage: Stage
    text: str
    output_tokens: int
    seconds: float | None
    """None: the call is shared."""
    cut_off: bool
    shared: bool = False


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One line of a samples file, with its texts."""

    document: Document
    question: str
    """The prompt of the task, as lmms-eval logs it: question, options and instruction."""
    answer: str
    """The scored text."""
    calls: tuple[CallText, ...]


@dataclass(frozen=True, order=True)
class Method:
    """A way to answer. Two runs of one method on one benchmark should give the same result."""

    mode: str
    """`alone`: one model. `transfer`: Full RT. `cascade`: MAI."""
    model: str
    """The model that gives the final answer: the large one of a pair."""
    small: str = ""
    """The small model of a pair. Empty if the mode is `alone`."""
    variant: Variant | None = "S"
    """The prompt; in `transfer` and `cascade`, that of the small model's thinking. None: another task's own prompt."""
    two_stage: bool = False
    options: tuple[str, ...] = ()
    """Arguments that change the method and that are not at their default, such as `anls_threshold=0.5`."""

    @property
    def prompt(self) -> str:
        """The paper's name of the prompt: S, E, R, E(S2) or R(S2); in Full RT and MAI, that of the thinking."""
        if self.variant is not None:
            return self.variant + ("(S2)" if self.two_stage else "")
        if self.mode == "alone":
            return "own prompt"
        return "E" if THINK_E in self.options else "R"

    def alone(self, side: Side, variant: Variant | None, two_stage: bool = False) -> "Method":
        """Return the method of one model of this pair."""
        model = self.small if side == "small" else self.model
        return Method("alone", model, "", variant, two_stage, self._options(DECODING))

    def full_rt(self) -> "Method":
        """Return Full RT of the same pair with the same thinking, which has one stage (Table 8)."""
        return replace(self, mode="transfer", two_stage=False, options=self._options((*DECODING, *TRANSFER)))

    def _options(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(option for option in self.options if option.partition("=")[0] in names)


@dataclass(frozen=True)
class Run:
    """One task of one lmms-eval command."""

    file: Path
    """The results file."""
    samples_file: Path | None
    task: str
    benchmark: str
    """The benchmark of our tasks; the name of the task for others."""
    method: Method
    ours: bool
    """Whether `mai_cascade` made the run, so that it has a trace."""
    metrics: dict[str, float]
    """lmms-eval's metrics of the task."""
    number: int
    """Documents that lmms-eval evaluated."""
    original: int
    """Documents of the data set."""
    documents: tuple[Document, ...] = ()
    rules: AgreementRules = field(default_factory=AgreementRules)
    wall_s: float | None = None
    """Time of answering. None: not known for this task, or calls of the task are shared."""
    engine: str = ""
    """The kind of engine: vllm, openai, transformers or scripted. Empty: not known."""
    speculation: tuple[int, int] | None = None
    """Proposed and accepted tokens of an assistant model."""
    not_answered: int = 0
    derived: bool = False
    """Whether these are the short answers inside a cascade instead of a run of their own."""
