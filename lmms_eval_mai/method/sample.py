"""The input and the output of the method as plain data: a `Sample` and its `Trace`, also as JSON values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from lmms_eval_mai.contract import (
    CALL,
    SIDES,
    Call,
    CallPrompt,
    ContentPart,
    Image,
    LoggedPrompt,
    Message,
    Sampling,
    Side,
    Variant,
)
from lmms_eval_mai.method.agreement import RULES, Benchmark, Doc, extract_answer
from lmms_eval_mai.method.methods import MAI, Method, steps_of
from lmms_eval_mai.method.prompts import AnswerForm
from lmms_eval_mai.method.sparse import Selection


@dataclass(frozen=True)
class Settings:
    """How a sample was answered: everything that can change its answer, besides the task and the engines' versions."""

    method: Method = MAI
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that can change an answer and are not at their default, such as `anls_threshold`, and the decoding
    arguments that are not those of our tasks."""
    small: str = ""
    """The small model, as the argument names it. Empty: the method does not ask it."""
    large: str = ""
    engines: Mapping[Side, str] = field(default_factory=dict)
    """`Engine.version` of each model."""
    version: str = ""
    """That of this package."""


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
    answer_form: AnswerForm
    variant: Variant | None
    """S, E, R or native, as the task of this package says. None: another lmms-eval task, which has `task_prompt`."""
    two_stage: bool
    """Whether the thinking model answers in a second call (Eq. 8; the `_s2` tasks)."""
    sampling: Mapping[CallPrompt, Sampling]
    task_prompt: tuple[Message, ...] = ()
    """The whole prompt of another lmms-eval task, with its own format sentence. Empty for our tasks."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The decoding arguments that are not those of our tasks, for the trace."""

    @property
    def documents_of(self) -> str:
        """The benchmark, or the task if it is not one of this package: what a threshold is chosen for."""
        return self.task if self.variant is None else self.benchmark.name


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of one sample's run: its calls and its exit."""

    exit: str
    """Where the sample finished: an exit of the method. Table 10: `agree_short` is MV small(S)/large(S), `agree_think`
    is MV small(R)/large(S), `transfer` is RT (MV: mutual verification; RT: reasoning transfer)."""
    answer: Call
    """The call whose text is the final answer."""
    calls: tuple[Call, ...]
    settings: Settings = Settings()
    readable: bool = True
    """Whether the scorer can read the final answer. For another lmms-eval task: whether the answer is not empty."""
    selection: Selection | None = None
    """The tokens of the thinking that were transferred (Eq. 12). None: the whole thinking was transferred, or none."""
    min_confidence: float | None = None
    """The threshold of the run. None: no stop of its method uses it."""
    images: tuple[str, ...] = ()
    """The hashes of the images' pixels. Documents with a common image are not independent of each other."""
    chose_threshold: bool = False
    """Whether a document with one of these images was used to choose the threshold, so that its score may be too
    good."""
    category: str | None = None
    """That of the question, if the data set names one."""

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
    """Return the category of a question: `category` of POPE, MMBench and shapes, `answer_type` of InfoVQA."""
    category = doc.get("category") or doc.get("answer_type")
    category = ", ".join(map(str, category)) if isinstance(category, list | tuple) else category
    return category if isinstance(category, str) and category else None


# --- as JSON values, in lmms-eval's samples file and in the server's replies (docs/output.md) ---

SELECTION = TypeAdapter(Selection)


def trace_record(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON values. What is not known is left out."""
    settings = trace.settings
    known = {name: value for name in ("min_confidence", "category") if (value := getattr(trace, name)) is not None}
    known |= {"parsed": parsed} if (parsed := trace.answer.parsed) is not None else {}
    record: dict[str, Any] = {
        "exit": trace.exit,
        "readable": trace.readable,
        "calls": [call_record(call) for call in trace.calls],
        **known,
        "images": list(trace.images),
        "chose_threshold": trace.chose_threshold,
        "method": settings.method.name,
        "steps": steps_of(settings.method),
        "options": dict(settings.options),
        **{side: model for side in SIDES if (model := getattr(settings, side))},
        "engines": dict(settings.engines),
        "version": settings.version,
        "rules": RULES,
    }
    if (selection := trace.selection) is not None:
        record["selection"] = SELECTION.dump_python(selection, exclude={"positions"}, exclude_none=True)
        record["selection"]["kept_tokens"] = selection.kept_tokens
    return record


def call_record(call: Call) -> dict[str, Any]:
    """Return a call as JSON values. A shared call has no times."""
    no_times = {"total_s"} if call.shared else set()
    fields = CALL.dump_python(call, exclude={"key", "logprobs", "attention", *no_times}, exclude_none=True)
    of = {"of": call.key.of} if call.key.of else {}
    return {"side": call.key.side, "prompt": call.key.prompt, **of, **fields}
