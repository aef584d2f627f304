"""Turns a chat request into a question for the cascade, or into a chat for one model."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmms_eval_mai.contract import PROMPTS, Message, Variant
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.method.agreement import Doc
from lmms_eval_mai.method.benchmarks import BENCHMARKS, GENERIC, LETTERS, options_of
from lmms_eval_mai.method.methods import METHODS, Ask, Method, Stop
from lmms_eval_mai.method.prompts import INSTRUCTIONS, AnswerForm
from lmms_eval_mai.method.sample import Sample
from lmms_eval_mai.run.ask import checked_options, question_sample, with_options
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import NAMES, sampling
from lmms_eval_mai.serve.chat_request import ChatRequest, EncodedImage, MaiOptions
from lmms_eval_mai.serve.errors import bad_request

Turns = Sequence[tuple[str, Sequence[str | EncodedImage]]]
"""Role and parts of each message."""
SHORT_ANSWER_TOKENS = 64
"""A request without an image and without options is a short-answer question if its token limit is at most this."""


@dataclass(frozen=True)
class Question:
    request: ChatRequest
    turns: Turns
    """The last one is the question, without an instruction."""
    config: Config
    """That of the server, with the method, the thinking and the threshold of the request."""
    sample: Sample
    """The question without its messages. Its variant is None if the chat is sent to one model as it is."""

    def opened(self, number: int) -> Sample:
        """Decode the images and return the sample. This blocks, so run it in a thread. `number`: that of the request in
        messages. Raises `RequestError` for an image that cannot be decoded."""
        self.sample.benchmark.parse("", self.sample.doc)  # the first call imports lmms-eval's parser: seconds
        messages: tuple[Message, ...] = ()
        images = itertools.count(1)
        for role, content in self.turns:
            parts = [part.decode(next(images)) if isinstance(part, EncodedImage) else part for part in content if part]
            messages += (Message(role, tuple(merge_adjacent_text(parts))),)
        whole = () if self.sample.variant else messages
        return replace(self.sample, doc_id=number, question=messages, task_prompt=whole)


def question_of(
    request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any], methods: Mapping[str, Method] = METHODS
) -> Question:
    """Return the question of a request. `gen_kwargs`: decoding arguments that the request may replace. `methods`: those
    that requests may name. Raises `RequestError`, or `ArgumentError`, which is the fault of the request too."""
    mai = request.mai
    turns = [(message.role.replace("developer", "system"), message.parts()) for message in request.messages]
    if mai.kind == "free":
        if others := mai.model_fields_set - {"kind", "trace"}:
            sentence = f"A free chat goes to one model as it is, so mai.{min(others)} has no effect. Leave it out."
            raise bad_request(sentence, "mai.kind")
        return _free_chat(request, turns, config, gen_kwargs)
    *earlier, (_, parts) = turns
    last = max(number for number, part in enumerate(parts) if isinstance(part, str) and part.strip())
    before = "".join(f"{part}\n" for part in parts[:last] if isinstance(part, str))
    text, variant, answer_form = strip_instruction(str(parts[last]))
    options = find_options(before + text, mai, answer_form)
    if not (variant or options or _asks_for_short_answer(request)):
        return _free_chat(request, turns, config, gen_kwargs)
    if mai.options and options_of(before + text) != [option.strip() for option in options]:
        text = with_options(text.rstrip("\n"), options)
    # A line ends before the instruction: so all prompts begin like those of the tasks of this package.
    end = "\n" if text[-1:].strip() and last == len(parts) - 1 else ""
    config = _config_of(mai, config, methods)
    sample = replace(
        _sample(request, options, config, gen_kwargs),
        doc=_doc(mai.benchmark, before + text, options),
        benchmark=GENERIC if mai.benchmark is None else BENCHMARKS[mai.benchmark],
        answer_form="letter" if options else mai.kind or answer_form or "word",
        variant=mai.think or variant or "S",
    )
    return Question(request, [*earlier, ("user", [*parts[:last], text + end, *parts[last + 1 :]])], config, sample)


def strip_instruction(text: str) -> tuple[str, Variant | None, AnswerForm | None]:
    """Return a text without an instruction of the paper at its end, and the prompt and the answer form of this
    instruction. A harness that runs a task of this package on the server sends one with the question."""
    for (variant, answer_form), instruction in INSTRUCTIONS.items():
        if text.rstrip().endswith(instruction):
            return text.rstrip().removesuffix(instruction), variant, answer_form
    return text, None, None


def find_options(text: str, mai: MaiOptions, answer_form: AnswerForm | None) -> list[str]:
    """Return the options of a question: those of the request, else those that its text shows. `answer_form`: that of
    its instruction. Raises `RequestError`, or `ArgumentError`."""
    if mai.options:
        options = checked_options(mai.options)
    else:
        options = [] if (mai.kind or answer_form) == "word" else options_of(text)
    if mai.kind is not None and mai.kind != ("letter" if options else "word"):
        sentence = "A letter needs options: give mai.options, or a line for each, as in 'A. red'. A word has none."
        raise bad_request(sentence, "mai.kind")
    return options


def _asks_for_short_answer(request: ChatRequest) -> bool:
    is_short = request.token_limit is not None and request.token_limit <= SHORT_ANSWER_TOKENS
    return is_short or bool(request.images() or request.mai.model_fields_set - {"trace"})


def _free_chat(request: ChatRequest, turns: Turns, config: Config, gen_kwargs: Mapping[str, Any]) -> Question:
    """Return a chat that is no question with a short answer. It is sent as it is to one model: the large one, if the
    server has it."""
    side = config.method.sides[-1]
    config = config.model_copy(update={"method": Method("free", (Ask(side, "task"), Stop("free", f"{side}.task")))})
    return Question(request, turns, config, replace(_sample(request, [], config, gen_kwargs), variant=None))


def _sample(request: ChatRequest, options: Sequence[str], config: Config, gen_kwargs: Mapping[str, Any]) -> Sample:
    """Return the sample of a request. Its token limit and its `stop` apply to answers and not to the thinking, which
    keeps those of the server."""
    limit = request.token_limit
    arguments = {**gen_kwargs, **request.model_dump(include=set(NAMES), exclude_unset=True)}
    decoding = sampling(arguments, config, is_mai_task=True)
    server = sampling(gen_kwargs, config, is_mai_task=True)
    for prompt, call in decoding.items():
        # A model alone that thinks by itself gives its thinking and its answer in one call.
        if PROMPTS[prompt].thinks and (prompt != "native" or len(config.method.asks) > 1):
            decoding[prompt] = replace(call, max_tokens=server[prompt].max_tokens, stop=server[prompt].stop)
        elif limit is not None:
            decoding[prompt] = replace(call, max_tokens=min(limit, config.max_new_tokens or limit))
    return question_sample("chat", options, decoding, arguments)


def _config_of(mai: MaiOptions, config: Config, methods: Mapping[str, Method]) -> Config:
    """Return how a request is asked. Refuses a method without a threshold or a model."""
    methods = {**methods, config.method.name: config.method}
    name, calibrated = mai.method or config.method.name, config.calibration
    if (method := methods.get(name)) is None:
        raise bad_request(f"mai.method must be one of {', '.join(methods)}.", "mai.method")
    if missing := {*method.sides} - {*config.method.sides}:
        text = f"This server has no {missing.pop()} model, and {name} needs one. Ask as the server does."
        raise bad_request(text, "mai.method")
    changes: dict[str, Any] = {"method": method, "think": mai.think or config.think}
    if mai.min_confidence is not None:
        if not method.needs_threshold:
            text = f"mai.min_confidence has no effect with {name}: give a mai.method that needs it, or leave it out."
            raise bad_request(text, "mai.min_confidence")
        changes |= {"min_confidence": mai.min_confidence, "calibration": None}
    elif method.needs_threshold and calibrated is not None and name not in calibrated.methods:
        text = f"This server has the thresholds of {', '.join(calibrated.methods)}. Give mai.min_confidence too."
        raise bad_request(text, "mai.min_confidence")
    return config.model_copy(update=changes)


def _doc(benchmark: str | None, question: str, options: Sequence[str]) -> Doc:
    """Return the document that the parser of the benchmark reads."""
    if benchmark == "mmbench_en_dev" and not 2 <= len(options) <= 4:
        raise bad_request(f"mmbench_en_dev needs 2 to 4 options, not {len(options)}.", "mai.benchmark")
    if benchmark == "mmmu_val":
        question_type = "multiple-choice" if options else "open"
        return {"question": question, "question_type": question_type, "options": repr(list(options))}
    letters = LETTERS[: len(options)]
    return {"question": question, "letters": letters, **dict(zip(letters, options, strict=True))}
