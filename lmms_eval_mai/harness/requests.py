"""Turns lmms-eval's requests into samples: one `Instance` becomes one `Sample`.

`run/decoding.py` decides the decoding of each stage, and `paper/cascade.py` which stages run.
"""

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import PIL.Image

from lmms_eval_mai.contract import ContentPart, Message
from lmms_eval_mai.engines.images import to_image
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError, UnreadableImage
from lmms_eval_mai.harness.other_tasks import format_sentence, has_text, question_of
from lmms_eval_mai.paper.agreement import Benchmark
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.prompts import VARIANTS, Variant
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling

_OR_ALLOW_FAILURES = "or allow failed samples with max_errors=N to score without them"


TWO_STAGE_TASKS = frozenset(
    f"{benchmark}_{suffix}" for benchmark in BENCHMARKS for suffix, (_, two_stage) in VARIANTS.items() if two_stage
)
"""The names of our `_s2` tasks."""


def is_padding(request: Any) -> bool:
    """Return whether the request is a copy that lmms-eval adds so that all ranks have the same number of requests.
    lmms-eval drops its answer."""
    return bool((request.metadata or {}).get("__padding_only__"))


def repeats(requests: Sequence[Any]) -> list[int]:
    """Return for each request its number among its copies, from 0. For repeats, lmms-eval lists the same object several
    times in a row."""
    return [repeat for _, same in itertools.groupby(requests, key=id) for repeat, _ in enumerate(same)]


class Fields(NamedTuple):
    """What lmms-eval tells of a request (`Instance.args` for chat models, lmms_eval/api/task.py)."""

    context: Any
    doc_to_messages: Any
    """A method of the task."""
    gen_kwargs: dict[str, Any]
    doc_id: int
    task: str
    split: str


def fields_of(request: Any) -> Fields:
    """Return the fields of a request by their names."""
    return Fields(*request.args)


class TaskPrompt(NamedTuple):
    """The prompt of a task."""

    benchmark: Benchmark
    variant: Variant | None
    """The prompt's variant. None: another lmms-eval task, with its own prompt."""
    two_stage: bool
    """Whether the prompt has a second stage."""


def task_of(request: Any) -> TaskPrompt:
    """Return the prompt of the request's task. Raises `ArgumentError` if the task's metadata has an unknown name."""
    mai = (request.metadata or {}).get("mai")
    if mai is None:
        return TaskPrompt(GENERIC, None, False)
    if not isinstance(mai, Mapping) or mai.get("benchmark") not in BENCHMARKS or mai.get("variant") not in VARIANTS:
        raise ArgumentError(
            f"Task {fields_of(request).task} has metadata mai={mai}: it must name a benchmark "
            f"({', '.join(BENCHMARKS)}) and a variant ({', '.join(VARIANTS)})."
        )
    return TaskPrompt(BENCHMARKS[mai["benchmark"]], *VARIANTS[mai["variant"]])


def check_stages(mode: str, two_stage_tasks: Collection[str]) -> None:
    """Refuse `_s2` tasks in the mode that does not use their second stage. Raises `ArgumentError`."""
    if mode == "transfer" and two_stage_tasks:
        name = min(two_stage_tasks)
        raise ArgumentError(
            f"mode=transfer cannot run {', '.join(sorted(two_stage_tasks))}: the small model only thinks and the large "
            "model answers (Table 8), so the second stage of the small model would not be used. Choose the tasks "
            f"without _s2, for example {name.removesuffix('_s2')}."
        )


def open_sample(request: Any, repeat: int, documents: Mapping[str, Any], config: Config) -> Sample:
    """Fetch the document, decode its images and build the chat. This blocks, so run it in a thread.

    `documents` is the model's `task_dict`. Raises `UnreadableImage`, or another `SampleError` if the document holds
    something that the cascade does not support (video, audio, an empty question) or if a function of the task fails.
    """
    _, doc_to_messages, gen_kwargs, doc_id, task, split = fields_of(request)
    benchmark, variant, two_stage = task_of(request)
    where = f"{task} document {doc_id}"
    with _document_errors(where):
        doc = documents[task][split][doc_id]
        prompt = _messages(doc_to_messages(doc), where)
        if variant:  # without the instruction, the last text of our tasks: every stage has its own
            question = (*prompt[:-1], Message("user", prompt[-1].content[:-1]))
        else:
            question = question_of(prompt, format_sentence(doc_to_messages, prompt))
        if not has_text(question):
            raise SampleError(f"{where}: its question is empty. Repair the dataset, {_OR_ALLOW_FAILURES}.")
        return Sample(
            task=task,
            doc_id=doc_id,
            repeat=repeat,
            question=question,
            # Parsers read only texts. The images are in the question already; do not keep them twice.
            doc={name: value for name, value in doc.items() if not isinstance(value, PIL.Image.Image)},
            benchmark=benchmark,
            kind=benchmark.kind(doc),
            variant=variant,
            two_stage=two_stage,
            sampling=sampling(gen_kwargs, config, variant is not None, repeat),
            own_prompt=() if variant else prompt,
        )


@contextlib.contextmanager
def _document_errors(where: str) -> Iterator[None]:
    """Turn other libraries' errors inside the block into a `SampleError`. `where` names the document."""
    try:
        yield
    except MaiError:
        raise
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:  # PIL raises these for broken images
        raise UnreadableImage(
            f"{where}: its image cannot be read ({error}). Repair the dataset, {_OR_ALLOW_FAILURES}."
        ) from error
    except Exception as error:
        raise SampleError(
            f"{where}: the task's functions failed on this document ({type(error).__name__}: {error}). Check the "
            "document's fields."
        ) from error


def _messages(chat: Sequence[Mapping[str, Any]], where: str) -> tuple[Message, ...]:
    """Return the messages of the task. Raises `SampleError` if they do not end with a message of the user."""
    messages = []
    for message in chat:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages.append(Message(message["role"], tuple(_content_part(part, where) for part in parts)))
    if not messages or messages[-1].role != "user":
        raise SampleError(
            f"{where}: the task's messages are empty or do not end with a message of the user, so the model has "
            f"nothing to answer. Correct doc_to_messages of the task, {_OR_ALLOW_FAILURES}."
        )
    return tuple(messages)


def _content_part(part: Mapping[str, Any], where: str) -> ContentPart:
    if part["type"] == "text":
        return replace_lone_surrogates(str(part["text"]))
    if part["type"] != "image":
        raise SampleError(
            f"{where} contains {part['type']}, and mai_cascade supports only text and images. Choose another task, "
            f"{_OR_ALLOW_FAILURES}."
        )
    image = part["url"]
    if isinstance(image, str):
        image = PIL.Image.open(image)
    if not isinstance(image, PIL.Image.Image):
        raise UnreadableImage(
            f"{where}: doc_to_messages returned an object of type {type(image).__name__} as an image: expected a PIL "
            f"image or a path. Correct the task or the dataset, {_OR_ALLOW_FAILURES}."
        )
    if not (image.width and image.height):
        raise UnreadableImage(
            f"{where}: its image has a side of 0 pixels ({image.width} x {image.height}). Repair the dataset, "
            f"{_OR_ALLOW_FAILURES}."
        )
    return to_image(image)
