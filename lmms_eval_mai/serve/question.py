"""Turns a chat request into a question for the cascade, or into a chat for one model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import Message, Sampling, Stage
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.paper.agreement import Doc
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.confidence import Thresholds
from lmms_eval_mai.paper.prompts import INSTRUCTIONS
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.ask import LETTERS
from lmms_eval_mai.run.config import OWN_THINKING, Config, without_effect
from lmms_eval_mai.run.decoding import NAMES, sampling
from lmms_eval_mai.serve.chat_request import ChatRequest, EncodedImage, MaiOptions
from lmms_eval_mai.serve.errors import bad_request

SHORT_ANSWER_TOKENS = 64
"""A request without an image and without options is a short-answer question if its token limit is at most this."""
OPTION = re.compile(r"^[ \t]*\(?([A-Z])[.):][ \t]+(\S.*)$", re.MULTILINE)
"""An option on its own line: "A. red", "A) red", "A: red" or "(A) red"."""


@dataclass(frozen=True)
class Question:
    """The question of a request, and how it is asked."""

    request: ChatRequest
    turns: Sequence[tuple[str, list[str | EncodedImage]]]
    """Role and parts of each message. The last one is the question, without an instruction."""
    mode: str
    choices: Mapping[str, Any]
    """The fields of `Pair` with the choices of the cascade."""
    sample: Sample
    """The question without its messages. Its variant is None if the chat is sent to one model as it is."""

    def opened(self, number: int) -> Sample:
        """Decode the images and return the sample. This blocks, so run it in a thread. `number`: that of the request in
        messages. Raises `UnreadableImage`."""
        self.sample.benchmark.parse("", self.sample.doc)  # the first call imports lmms-eval's parser: seconds
        messages: tuple[Message, ...] = ()
        for role, content in self.turns:
            parts = [part.decode() if isinstance(part, EncodedImage) else part for part in content if part]
            messages += (Message(role, tuple(merge_adjacent_text(parts))),)
        own = () if self.sample.variant else messages
        return dataclasses.replace(self.sample, doc_id=number, question=messages, own_prompt=own)


def question_of(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any]) -> Question:
    """Return the question of a request. `gen_kwargs`: decoding arguments that the request may replace. Raises
    `RequestError`, or `ArgumentError`, which is the fault of the request too.

    A harness that runs a task of this package on the server sends the instruction of the task with the question, so an
    instruction of the paper at its end is replaced.
    """
    mai, mode = request.mai, request.mai.mode or config.mode
    sides, choices = [engine.side for engine in config.engines()], _choices(mai, mode, config)
    limit = request.max_completion_tokens or request.max_tokens
    sample = Sample("chat", 0, 0, (), {}, GENERIC, "word", None, False, _decoding(request, limit, config, gen_kwargs))
    roles = ["system" if message.role == "developer" else message.role for message in request.messages]
    contents = [message.parts() for message in request.messages]
    turns, last = list(zip(roles, contents, strict=True)), contents[-1]
    end = max(number for number, part in enumerate(last) if isinstance(part, str) and part.strip())
    before = [part for part in last[:end] if isinstance(part, str)]
    text, variant, kind = str(last[end]), None, None
    for asked, instruction in INSTRUCTIONS.items():
        if text.rstrip().endswith(instruction):
            text, (variant, kind) = text.rstrip().removesuffix(instruction), asked
    listed = options_of("\n".join([*before, text]))
    is_short = limit is not None and limit <= SHORT_ANSWER_TOKENS
    if not (variant or listed or is_short or request.images() or mai.model_fields_set - {"trace", "progress"}):
        return Question(request, turns, sides[-1], choices, sample)
    if mai.options is not None and listed != [option.strip() for option in mai.options]:  # as the Python API does
        lines = (f"{letter}. {option}" for letter, option in zip(LETTERS, mai.options, strict=False))
        text = "\n".join([text.rstrip("\n"), *lines])
    options = mai.options or ([] if (mai.kind or kind) == "word" else listed)
    if mai.kind is not None and mai.kind != ("letter" if options else "word"):
        text = (
            "A letter needs options: give mai.options, or write each on its own line, as in 'A. red'. A word has none."
        )
        raise bad_request(text, "mai.kind")
    doc = _doc(mai.benchmark, "\n".join([*before, text]), options)
    if text[-1:].strip() and end == len(last) - 1:
        text += "\n"  # before the instruction: so all prompts begin like those of the tasks of this package
    last[end] = text
    sample = dataclasses.replace(
        sample,
        doc=doc,
        benchmark=GENERIC if mai.benchmark is None else BENCHMARKS[mai.benchmark],
        kind=mai.kind or ("letter" if mai.options else kind) or ("letter" if options else "word"),
        variant=mai.think or variant or "S",
    )
    return Question(request, turns, mode, choices, sample)


def options_of(text: str) -> list[str]:
    """Return the texts of the last list of options in a text: a line for each, from A without a gap. Empty: none."""
    found: list[str] = []
    last: list[str] = []
    for letter, option in OPTION.findall(text):
        found = [] if letter == "A" else found
        found = [*found, option.rstrip()] if LETTERS[len(found) :].startswith(letter) else []
        last = found if len(found) >= 2 else last
    return last


def _decoding(
    request: ChatRequest, limit: int | None, config: Config, gen_kwargs: Mapping[str, Any]
) -> dict[Stage, Sampling]:
    """Return how each stage is decoded. `limit`: the token limit of the request. Like the request's `stop`, it applies
    to answers and not to the thinking, which is the server's own."""
    given = request.model_dump(include=set(NAMES), exclude_unset=True)
    stages = sampling({**gen_kwargs, **given}, config, own_task=True)
    own = sampling(gen_kwargs, config, own_task=True)["think"]
    if limit is not None:
        limit = min(limit, config.max_new_tokens or limit)
        stages = {stage: dataclasses.replace(found, max_tokens=limit) for stage, found in stages.items()}
    return stages | {"think": dataclasses.replace(stages["think"], max_tokens=own.max_tokens, stop=own.stop)}


def _choices(mai: MaiOptions, mode: str, config: Config) -> dict[str, Any]:
    """Return the choices of the cascade. Refuses choices that have no effect, no threshold or no model."""
    names = ("verify", "min_confidence", "thinker", "second_check")
    given = {name: value for name in names if (value := getattr(mai, name)) is not None}
    asked = config.model_copy(update={"mode": mode, **given})
    least, calibrated = mai.min_confidence, config.calibration
    if unused := without_effect(asked, given):
        raise bad_request(unused[1], f"mai.{unused[0]}")
    if missing := {engine.side for engine in asked.engines()} - {engine.side for engine in config.engines()}:
        text = f"This server has no {missing.pop()} model, and the request needs one. Ask as the server does."
        raise bad_request(text, "mai.mode")
    if least is None and (asked.verify, asked.thinker) == OWN_THINKING != (config.verify, config.thinker):
        least = config.own_min_confidence
    if least is None and calibrated is not None and asked.verify != "agreement" and asked.choices != calibrated.choices:
        text = f"The threshold of this server is that of {calibrated.choices.written}. Give min_confidence too."
        raise bad_request(text, "mai.min_confidence")
    return {"choices": asked.choices, "thresholds": Thresholds(least) if least else config.thresholds}


def _doc(benchmark: str | None, question: str, options: Sequence[str]) -> Doc:
    """Return the document as the parser of the benchmark reads it."""
    if benchmark == "mmbench_en_dev" and not 2 <= len(options) <= 4:
        raise bad_request(f"mmbench_en_dev needs 2 to 4 options, not {len(options)}.", "mai.benchmark")
    if benchmark == "mmmu_val":
        kind = "multiple-choice" if options else "open"
        return {"question": question, "question_type": kind, "options": repr(list(options))}
    return {"question": question, "options": list(options), **dict(zip(LETTERS, options, strict=False))}
