"""The Python API: questions about images of one's own, without lmms-eval's tasks.

A question gets the prompts of the `_s` tasks: both models answer directly, and the small model thinks if they disagree.
`Cascade` runs each question as one sample of an `Evaluation`, on engines whose event loop has a thread of its own. So
the API works in scripts, in asynchronous programs and in notebooks, where an event loop already runs.
"""

import asyncio
import dataclasses
import hashlib
import io
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import PIL.Image

from lmms_eval_mai.contract import CallPrompt, Image, Message, Sampling
from lmms_eval_mai.engines.images import to_image
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.errors import ArgumentError, UnreadableImage
from lmms_eval_mai.method.benchmarks import GENERIC, LETTERS
from lmms_eval_mai.method.sample import Sample, Trace
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.decoding import sampling, unusual
from lmms_eval_mai.run.engines import Engines, result_of
from lmms_eval_mai.run.evaluation import Evaluation
from lmms_eval_mai.user_input import path_of

TASK = "ask"
"""Name of the task in messages, traces and stores."""

OneImage = PIL.Image.Image | str | Path
"""A decoded image, or the path of an image file."""

Images = OneImage | list[OneImage] | tuple[OneImage, ...] | None
"""The images of a question."""

_loading = threading.Lock()
"""Held while an image of the user is decoded. Pillow decodes an opened file and reads its EXIF data when they are first
needed. Two threads that do this at the same time, for two questions about one image, get broken pixels or an image that
is not upright."""


class Cascade:
    """Two models that answer questions about images, by the paper's cascade or by another method.

        async with Cascade(pair="demo") as mai:
            trace = await mai.ask("image.png", "What colour is the circle?", options=["red", "blue"])
        print(trace.text, trace.exit)

    The engines start at the beginning of the block and stop at its end. `with` is the same for code that is not
    asynchronous, with `ask_blocking`. `start` and `close` do the same without a block. The end of the process stops
    the engines too.
    """

    def __init__(self, *, gen_kwargs: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        """Read the arguments and check that the engines can run on this machine.

        `arguments`: those of `--model_args`, for example `pair`, `small`, `large`, `method`. There is no call store,
        unless `store` is True or a folder. `gen_kwargs`: decoding arguments, as in `--gen_kwargs`. Raises
        `ArgumentError`, `EngineUnavailable`, `EngineStartError` or `StoreError`.
        """
        if not isinstance(gen_kwargs, Mapping | None):
            raise ArgumentError(f"gen_kwargs={gen_kwargs!r} is invalid: expected a dictionary.")
        self.config = parse({"store": "off", **arguments})
        self._decoding = dict(gen_kwargs or {})
        sampling(self._decoding, self.config, is_mai_task=True)  # refuses wrong arguments
        self._engines = Engines(self.config)
        self._evaluation = Evaluation(self._engines, self.config)
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start the engines and wait until they are ready. Has no effect if they are running. Raises
        `EngineStartError`, also after `close`, or `StoreError`; no engine is left running then."""
        try:
            self._engines.run(self._evaluation.begin({TASK: self._decoding}))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the engines. Questions that are not answered yet are cancelled. To start again, make a new `Cascade`."""
        self._evaluation.stop()

    def submit(self, image: Images, question: str, options: Sequence[str] | None = None) -> "Future[Trace]":
        """Ask a question and return a future with its trace at once.

        `image`: an image, the path of an image file, several of them, or None. `options`: the texts of the answers to
        choose from; the answer is then a letter, A for the first of them. `max_open_samples` limits how many questions
        are answered at the same time; the others wait.

        Raises `ArgumentError`, or `EngineNotRunning`. The future raises a `SampleError` if this question cannot be
        answered, for example `UnreadableImage`, and `EngineCrashed` if an engine cannot be restarted. To cancel the
        future cancels the question.
        """
        # A store finds the answer to the same question again, so its number must not depend on the order.
        number = next(self._numbers) if self.config.store == "off" else None
        open_sample = checked_question(image, question, options, self.config, self._decoding, number)
        return self._engines.submit(self._evaluation.run_one(open_sample))

    async def ask(self, image: Images, question: str, options: Sequence[str] | None = None) -> Trace:
        """Ask a question and return its trace. `trace.text` is the answer. The arguments and the errors are those of
        `submit`. Any number of questions may be asked at the same time, for example with `asyncio.gather`."""
        return await asyncio.wrap_future(self.submit(image, question, options))

    def ask_blocking(self, image: Images, question: str, options: Sequence[str] | None = None) -> Trace:
        """Ask a question, wait for its answer and return its trace. The arguments and the errors are those of
        `submit`."""
        return result_of(self.submit(image, question, options))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.close)  # ends the start
            await asyncio.gather(starting, return_exceptions=True)  # or asyncio would report its error as not retrieved
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)


def checked_question(
    image: Images,
    question: str,
    options: Sequence[str] | None,
    config: Config,
    gen_kwargs: Mapping[str, Any],
    number: int | None = None,
) -> Callable[[], Sample]:
    """Check a question and return a function that decodes its images and returns it as a sample of the task `ask`.

    `number`: its number in messages. None: a number that the same question has in every process. Raises
    `ArgumentError`, and the function raises `UnreadableImage`.
    """
    # The caller may change its lists before the question is opened.
    sources = [] if image is None else [*image] if isinstance(image, list | tuple) else [image]
    for source in sources:
        if not isinstance(source, PIL.Image.Image | str | Path):
            raise ArgumentError(
                f"An object of type {type(source).__name__} is not an image: give a PIL image, the path of an image "
                "file, a list of them, or None."
            )
        if isinstance(source, str) and re.match(r"data:|[a-z][a-z0-9+.-]*://", source, re.IGNORECASE):
            raise ArgumentError(
                f"image={source[:100]} is an address, and nothing is downloaded: give a file or an image."
            )
    texts = [] if options is None else checked_options(options)
    if not isinstance(question, str) or not question.strip():
        raise ArgumentError(f"The question {question!r} is not a text, or it is empty.")
    text = replace_lone_surrogates(with_options(question, texts) + "\n")  # tokenizers refuse them
    sample = question_sample(TASK, texts, sampling(gen_kwargs, config, is_mai_task=True), gen_kwargs)

    def open_sample() -> Sample:
        images = tuple(map(open_image, sources))
        number_of_sample = _number_of(images, text) if number is None else number
        return dataclasses.replace(sample, doc_id=number_of_sample, question=(Message("user", (*images, text)),))

    return open_sample


def with_options(question: str, options: Sequence[str]) -> str:
    """Return a question with a line for each option below it, such as "A. red"."""
    return "\n".join([question, *(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))])


def question_sample(
    task: str, options: Sequence[str], sampling: Mapping[CallPrompt, Sampling], gen_kwargs: Mapping[str, Any]
) -> Sample:
    """Return the sample of a question with these options, without its messages. `gen_kwargs`: those of `sampling`."""
    doc = {"letters": LETTERS[: len(options)]}
    return Sample(
        task=task,
        doc_id=0,
        repeat=0,
        question=(),
        doc=doc,
        benchmark=GENERIC,
        answer_form=GENERIC.answer_form(doc),
        variant="S",
        two_stage=False,
        sampling=sampling,
        decoding=unusual(gen_kwargs),
    )


def checked_options(given: Sequence[str]) -> list[str]:
    ordered = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | Set)
    options = list(given) if ordered else []
    if not ordered or not all(isinstance(option, str) for option in options):
        raise ArgumentError(f"options={given!r} is invalid: expected a list of texts.")
    if not 2 <= len(options) <= len(LETTERS):
        raise ArgumentError(f"options has {len(options)} texts: expected 2 to {len(LETTERS)}, or None.")
    if len({*map(str.strip, options), ""}) <= len(options):
        raise ArgumentError(f"options={options!r} is invalid: a text is empty, or two are equal.")
    return options


def open_image(source: OneImage | io.BytesIO, formats: tuple[str, ...] | None = None) -> Image:
    """Decode an image, turned upright if its EXIF data tell how. `formats`: those that are decoded; None: all of
    Pillow. Raises `UnreadableImage`."""
    shown = f"The image {source}" if isinstance(source, str | Path) else "The image"
    try:
        if isinstance(source, PIL.Image.Image):
            with _loading:
                return _decoded(source)
        file = path_of(source) if isinstance(source, str | Path) else source
        with PIL.Image.open(file, formats=formats) as image:
            return _decoded(image)
    except Exception as error:  # broken files make Pillow raise errors of many kinds
        raise UnreadableImage(f"{shown} cannot be read ({error}). Give an image that Pillow can open.") from error


def _decoded(image: PIL.Image.Image) -> Image:
    if not (image.width and image.height):
        raise ValueError(f"it has {image.width} x {image.height} pixels")
    return to_image(image, upright=True)


def _number_of(images: Sequence[Image], text: str) -> int:
    """Return a number that the same images and the same text have in every process."""
    parts = "\0".join([*(image.uuid for image in images), text])
    return int.from_bytes(hashlib.blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=4).digest())
