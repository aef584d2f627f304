"""The input and the output of the method as plain data: a `Sample` and its `Trace`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmms_eval_mai.contract import Call, ContentPart, Image, Message, Sampling, Stage
from lmms_eval_mai.paper.agreement import Benchmark, Doc, Verification, extract_answer
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.paper.prompts import Kind, Variant
from lmms_eval_mai.paper.sparse import Selection

Exit = Literal["agree_short", "confident", "agree_think", "transfer", "large_think", "small", "large"]
"""Where a sample finishes. Table 10: agree_short is MV small(S)/large(S), agree_think is MV small(R)/large(S), transfer
is RT (MV: mutual verification; RT: reasoning transfer). Two exits are not in the paper: `confident` takes
the place of agree_short with `verify=confidence`, and `large_think` that of the later exits with `thinker=large`."""

EXITS: dict[str, tuple[Exit, ...]] = {
    "cascade": ("agree_short", "agree_think", "transfer"),
    "transfer": ("transfer",),
    "small": ("small",),
    "large": ("large",),
}
"""Mode -> its exits, with the paper's choices."""


def exits_of(mode: str, choices: Choices) -> tuple[Exit, ...]:
    """Return the exits of a mode. `choices`: those of a cascade."""
    if mode != "cascade":
        return EXITS[mode]
    first: Exit = "confident" if choices.verify == "confidence" else "agree_short"
    if choices.thinker == "large":
        return (first, "large_think")
    return (first, "agree_think", "transfer") if choices.second_check == "on" else (first, "transfer")


@dataclass(frozen=True, slots=True)
class Sample:
    """One opened document, with decoded images. It is dropped as soon as its trace exists, to free the images."""

    task: str
    doc_id: int
    repeat: int
    """Number of this repeat of the document, from 0 (`lmms-eval -n`)."""
    question: tuple[Message, ...]
    """Q of the equations: images and question. A stage appends its text to the last message."""
    doc: Doc
    """The document without its images, for the parsers."""
    benchmark: Benchmark
    """The rules of agreement."""
    kind: Kind
    variant: Variant | None
    """The task's own prompt. None for other lmms-eval tasks, which have `own_prompt`."""
    two_stage: bool
    """Whether the thinking model answers in a second call (Eq. 8; the `_s2` tasks)."""
    sampling: Mapping[Stage, Sampling]
    own_prompt: tuple[Message, ...] = ()
    """The whole prompt of another lmms-eval task, with its own format sentence. Empty for our tasks."""


LoggedPrompt = tuple[Mapping[str, Any], ...]
"""The messages of a prompt, each in the form {"role": ..., "content": [...]}. Each part of the content is a text; an
image is `<image WIDTHxHEIGHT>`."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of one sample's run: its calls, its verifications and its exit."""

    exit: Exit
    answer: Call
    """The call whose text is the final answer."""
    calls: tuple[Call, ...]
    verifications: tuple[Verification, ...]
    """In order: the two short answers (Eq. 5 and 6), then the thought answer with the large model's short answer."""
    readable: bool = True
    """Whether the scorer can read the final answer. For another lmms-eval task: whether the answer is not empty."""
    prompts: tuple[LoggedPrompt, ...] = ()
    """The prompt of each call, with `log_prompts=true`; else empty."""
    selection: Selection | None = None
    """The tokens of the thinking that were transferred (Eq. 12). None: the whole thinking was transferred, or none."""
    min_confidence: float | None = None
    """The threshold of the first check. None: it needs none."""
    thought: str | None = None
    """Full RT: the parsed answer after the thinking, which this mode does not verify. None: it cannot be read."""
    parsed: str | None = None
    """The final answer as the benchmark's scorer reads it. None: the scorer cannot read it, or is not known."""
    images: tuple[str, ...] = ()
    """The hashes of the images' pixels. Documents with a common image are not independent of each other."""
    category: str | None = None
    """The kind of the question that the data set names."""

    @property
    def text(self) -> str:
        """Return the final answer, without its brackets and without reasoning."""
        return extract_answer(self.answer.text)


def logged_prompt(messages: Sequence[Message]) -> LoggedPrompt:
    """Return a prompt without the pixels of its images."""
    return tuple({"role": message.role, "content": [*map(_text_of, message.content)]} for message in messages)


def _text_of(part: ContentPart) -> str:
    return f"<image {part.pixels.width}x{part.pixels.height}>" if isinstance(part, Image) else part


def category_of(doc: Doc) -> str | None:
    """Return the kind of a question: POPE, MMBench and shapes have `category`, InfoVQA has `answer_type`."""
    kind = doc.get("category") or doc.get("answer_type")
    kind = ", ".join(map(str, kind)) if isinstance(kind, list | tuple) else kind
    return kind if isinstance(kind, str) and kind else None
