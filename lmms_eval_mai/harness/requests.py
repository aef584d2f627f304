"""Turns lmms-eval's requests into samples: one `Instance` becomes one `Sample`.

Other lmms-eval tasks ask for an answer format of their own. Short answers use the task's own prompt. For the thinking
and the transfer, its format sentence is removed from the question, because the paper's prompts have another one.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import datasets
import PIL.Image
from lmms_eval.models.model_utils import usage_metrics
from loguru import logger

from lmms_eval_mai.contract import CallPrompt, ContentPart, Message, Sampling, Variant
from lmms_eval_mai.engines.images import to_image
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError, UnreadableImage
from lmms_eval_mai.method.agreement import Benchmark
from lmms_eval_mai.method.benchmarks import BENCHMARKS, GENERIC, letters_of
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.method.sample import Sample
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import ignored_arguments, sampling, unusual
from lmms_eval_mai.run.store import SampleKey

HASHED_TOGETHER = 32
"""Documents whose images are in memory at the same time while they are hashed."""
_REMEDY = "Repair the dataset or the task, or allow failed samples with max_errors=N to score without them."


@dataclass(frozen=True)
class Request:
    """One request of lmms-eval. Without a variant, its task is another lmms-eval task with a prompt of its own."""

    instance: Any
    doc_id: int
    task: str
    split: str
    repeat: int
    """Its number among the copies of the document, from 0."""
    doc_to_messages: Any
    """A method of the task."""
    system_instruction: str
    gen_kwargs: dict[str, Any]
    sampling: Mapping[CallPrompt, Sampling]
    benchmark: Benchmark
    variant: Variant | None
    two_stage: bool

    @property
    def key(self) -> SampleKey:
        return self.task, self.doc_id, self.repeat

    @property
    def task_object(self) -> Any:
        return self.doc_to_messages.__self__

    @property
    def is_padding(self) -> bool:
        """Whether lmms-eval adds this copy so that all ranks have the same number of requests, and drops its answer."""
        return bool((self.instance.metadata or {}).get("__padding_only__"))


def read_requests(instances: Iterable[Any], config: Config) -> list[Request]:
    """Read `Instance.args` for chat models (lmms_eval/api/task.py). For repeats, lmms-eval lists one object several
    times in a row. Raises `ArgumentError` for a task, or for arguments, that cannot work."""
    if usage_metrics._BUDGET is not None:  # nothing public tells the budget
        raise ArgumentError(
            f"--max_tokens {usage_metrics._BUDGET} cannot be used: mai_cascade runs many samples at the same time and "
            "does not stop at a number of tokens. Use --limit, or max_new_tokens=N for each call."
        )
    requests: list[Request] = []
    first: dict[tuple[str, int], Request] = {}
    for _, same in itertools.groupby(instances, key=id):
        for repeat, instance in enumerate(same):
            doc_id, task = instance.args[3:5]
            if (task, repeat) not in first:
                first[task, repeat] = _first_request(instance, repeat, config)
            requests.append(replace(first[task, repeat], instance=instance, doc_id=doc_id))
    return requests


def _first_request(instance: Any, repeat: int, config: Config) -> Request:
    """Read the first request of a task with this repeat. The others differ in their document only."""
    context, doc_to_messages, gen_kwargs, doc_id, task, split = instance.args[:6]
    if doc_to_messages is None:
        raise ArgumentError(
            "--cache_requests cannot be used: lmms-eval's request cache loses the functions that make the messages of "
            "a chat (lmms_eval/caching/cache.py). Leave it out."
        )
    if getattr(doc_to_messages, "__self__", None) is None:
        raise ArgumentError(
            f"Leave out task {task}: mai_cascade can answer neither generate_until_agentic requests nor those "
            "for models without chats."
        )
    benchmark, variant, two_stage = _prompt_of(task, (instance.metadata or {}).get("mai"))
    thinks = [ask for ask in config.method.asks if ask.prompt in ("think", "explain", "task")]
    if two_stage and not any(map(config.method.is_answer_used, thinks)):
        raise ArgumentError(
            f"method={config.method.name} cannot run {task}: no stop uses the answer of a model that thinks (Table 8), "
            "so its second stage would not be used. Choose the task without _s2."
        )
    if instance.request_type == "generate_until_multi_round" and variant is None:
        raise ArgumentError(
            f"Task {task} has rounds of its own, which mai_cascade does not support: choose tasks of type "
            "generate_until, or one of the _s2 tasks of lmms-eval-mai."
        )
    return Request(
        instance=instance,
        doc_id=doc_id,
        task=task,
        split=split,
        repeat=repeat,
        doc_to_messages=doc_to_messages,
        system_instruction=_system_instruction(doc_to_messages.__self__, context, doc_id),
        gen_kwargs=gen_kwargs,
        sampling=sampling(gen_kwargs, config, variant is not None, repeat),
        benchmark=benchmark,
        variant=variant,
        two_stage=two_stage,
    )


def _prompt_of(task: str, mai: Any) -> tuple[Benchmark, Variant | None, bool]:
    """Return the benchmark of a task, its variant, and whether it has two stages. `mai`: of the task's metadata."""
    if mai is None:
        return GENERIC, None, False
    if not isinstance(mai, Mapping) or mai.get("benchmark") not in BENCHMARKS or mai.get("variant") not in VARIANTS:
        raise ArgumentError(
            f"Task {task} has metadata mai={mai}: it must name a benchmark ({', '.join(BENCHMARKS)}) and a variant "
            f"({', '.join(VARIANTS)})."
        )
    return BENCHMARKS[mai["benchmark"]], *VARIANTS[mai["variant"]]


def _system_instruction(task: Any, context: Any, doc_id: int) -> str:
    """Return the text of `--system_instruction`; empty without it. lmms-eval only puts it before the document's text in
    the context (`fewshot_context`, lmms_eval/api/task.py), and it fails there if the task has a description."""
    text = task.doc_to_text(task.eval_docs_no_media[doc_id])
    has_instruction = isinstance(text, str) and not task.config.description and context.endswith(text)
    return str(context.removesuffix(text)) if has_instruction else ""


def decoding_of(requests: Sequence[Request]) -> dict[str, Any]:
    """Return the decoding arguments of each task, and the system instruction: they are a part of the store's name."""
    decoding: dict[str, Any] = {request.task: request.gen_kwargs for request in requests}
    return decoding | {"--system_instruction": [request.system_instruction for request in requests[:1]]}


def log_use(requests: Sequence[Request], documents: Mapping[str, Any], config: Config, prompts: bool) -> None:
    """Log which decoding arguments are ignored and, with `prompts`, how the prompts of other lmms-eval tasks are used.
    `documents`: the model's `task_dict`."""
    for name, request in {request.task: request for request in reversed(requests)}.items():
        if ignored := ignored_arguments(request.gen_kwargs):
            logger.warning(f"{name}: mai_cascade ignores {', '.join(ignored)}, as lmms-eval's vllm model does.")
        if prompts and request.variant is None and any(ask.prompt != "task" for ask in config.method.asks):
            with contextlib.suppress(MaiError):  # a document that cannot be opened fails later, with its message
                sentence = format_sentence(request.task_object, open_sample(request, documents).task_prompt)
                logger.info(
                    f"mai_cascade: {name} is not a task of lmms-eval-mai. Short answers use its own prompt. For the "
                    "thinking and the transfer, the paper's prompts "
                    + (f'replace its "{sentence}".' if sentence else "follow it, as no format sentence was found.")
                )


def open_sample(request: Request, documents: Mapping[str, Any]) -> Sample:
    """Fetch the document, decode its images and build the chat. This blocks, so run it in a thread. Raises
    `UnreadableImage`, or another `SampleError` for what the cascade does not support (video, audio, an empty question)
    and if a function of the task fails."""
    variant, benchmark = request.variant, request.benchmark
    where = f"{request.task} document {request.doc_id}"
    with _document_errors(where):
        document = documents[request.task][request.split][request.doc_id]
        prompt = _messages(request.doc_to_messages(document), where)
        if instruction := request.system_instruction:  # as with lmms-eval's models, the task's own system message goes
            prompt = (Message("system", (instruction,)), *(one for one in prompt if one.role != "system"))
        if variant:  # without the instruction, the last text of our tasks: every stage has its own
            question = (*prompt[:-1], Message("user", prompt[-1].content[:-1]))
        else:
            question = without_sentence(prompt, format_sentence(request.task_object, prompt))
        if not _has_text(question):
            raise SampleError(f"{where}: its question is empty. {_REMEDY}")
        # Parsers read only texts. The images are in the question already; do not keep them twice.
        doc = {name: value for name, value in document.items() if not isinstance(value, PIL.Image.Image)}
        if not variant:
            shown = "".join(f"\n{part}" if isinstance(part, str) else " <image>" for part in prompt[-1].content)
            doc["letters"] = letters_of(shown)
        return Sample(
            task=request.task,
            doc_id=request.doc_id,
            repeat=request.repeat,
            question=question,
            doc=doc,
            benchmark=benchmark,
            answer_form=benchmark.answer_form(doc),
            variant=variant,
            two_stage=request.two_stage,
            sampling=request.sampling,
            task_prompt=() if variant else prompt,
            decoding=unusual(request.gen_kwargs) | ({"system_instruction": instruction} if instruction else {}),
        )


@contextlib.contextmanager
def _document_errors(where: str) -> Iterator[None]:
    """Turn other libraries' errors inside the block into a `SampleError`."""
    try:
        yield
    except MaiError:
        raise
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:  # PIL raises these for broken images
        raise UnreadableImage(f"{where}: its image cannot be read ({error}). {_REMEDY}") from error
    except Exception as error:
        raise SampleError(
            f"{where}: the task's functions failed on this document ({type(error).__name__}: {error}). Check the "
            "document's fields."
        ) from error


def _messages(chat: Sequence[Mapping[str, Any]], where: str) -> tuple[Message, ...]:
    messages = []
    for message in chat:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        messages.append(Message(message["role"], tuple(_content_part(part, where) for part in parts)))
    if not messages or messages[-1].role != "user":
        raise SampleError(f"{where}: the task's messages do not end with a message of the user. {_REMEDY}")
    return tuple(messages)


def _content_part(part: Mapping[str, Any], where: str) -> ContentPart:
    if part["type"] == "text":
        return replace_lone_surrogates(str(part["text"]))
    if part["type"] != "image":
        raise SampleError(f"{where} contains {part['type']}, and mai_cascade supports only text and images. {_REMEDY}")
    image = PIL.Image.open(part["url"]) if isinstance(part["url"], str) else part["url"]
    if not (isinstance(image, PIL.Image.Image) and image.width and image.height):
        raise UnreadableImage(f"{where}: its image is not a PIL image or a path, or has no pixels. {_REMEDY}")
    return to_image(image)


# --- prompts of other lmms-eval tasks ---------------------------------------------------------------------


def format_sentence(task: Any, prompt: tuple[Message, ...]) -> str:
    """Return the sentence that a task puts at the end of this prompt; empty if none is found: the `post_prompt`,
    `multiple_choice_prompt` or the like in the task's `lmms_eval_specific_kwargs`."""
    options = getattr(task, "lmms_eval_specific_kwargs", None) or {}
    end = prompt[-1].content[-1] if prompt[-1].content else None
    sentences = [
        value.strip()
        for name, value in options.items()
        if name.endswith("prompt") and name != "pre_prompt" and isinstance(value, str)
        if isinstance(end, str) and end.rstrip().endswith(value.strip())
    ]
    sentence = max(sentences, key=len, default="")
    return sentence if _has_text(without_sentence(prompt, sentence)) else ""


def without_sentence(prompt: tuple[Message, ...], sentence: str) -> tuple[Message, ...]:
    """Return the prompt without its format sentence, so that another instruction can follow after the separator before
    it. Without a sentence, a line break is added."""
    *before, last = prompt
    if not sentence:
        return (*before, Message(last.role, (*last.content, "\n")))
    *parts, end = last.content
    question = str(end).rstrip().removesuffix(sentence)
    separator = "\n" if question and not question[-1].isspace() else ""
    return (*before, Message(last.role, (*parts, question + separator)))


def _has_text(messages: tuple[Message, ...]) -> bool:
    return any(isinstance(part, str) and part.strip() for message in messages for part in message.content)


# --- the order in which documents are opened ---------------------------------------------------------------


def grouped_by_image(keys: Sequence[tuple[str, str, int]], documents: Mapping[str, Any]) -> list[int]:
    """Return the indices of `keys` (task, split and number of a document), so that documents with the same images
    follow the first of them. POPE asks 9,000 questions about 500 images, in an order in which an engine whose cache
    holds fewer images reads each of them several times. Documents of data sets that are streamed, or whose images
    cannot be told apart, stay where they are."""
    images: dict[tuple[str, str, int], str] = {}
    numbers: dict[tuple[str, str], set[int]] = {}
    for task, split, number in keys:
        numbers.setdefault((task, split), set()).add(number)
    for (task, split), asked in numbers.items():
        try:
            images |= {(task, split, number): hash for number, hash in _hashes(documents[task][split], sorted(asked))}
        except Exception as error:  # the order has no effect on any answer
            logger.debug(f"mai_cascade: the images of {task} are not grouped: {type(error).__name__}: {error}")
    groups: dict[Any, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(images.get(key, index), []).append(index)
    return [index for group in groups.values() for index in group]


def _hashes(dataset: Any, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield the number of each document that has images, and a hash of their bytes, which are not decoded."""
    features = dataset.features if isinstance(dataset, datasets.Dataset) else {}
    columns = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        return
    for name in columns:
        dataset = dataset.cast_column(name, datasets.Image(decode=False))
    batches = dataset.select_columns(columns).select(numbers).iter(HASHED_TOGETHER)
    rows = itertools.chain.from_iterable(zip(*batch.values(), strict=True) for batch in batches)
    for number, cells in zip(numbers, rows, strict=True):
        if images := [cell for cell in cells if cell is not None]:
            digest = hashlib.blake2b(digest_size=16)
            for image in images:
                digest.update(image["bytes"] or str(image["path"]).encode())
            yield number, digest.hexdigest()
