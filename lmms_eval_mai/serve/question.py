"""Turns a chat request into a question for the cascade, or into a chat for one model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import Sampling, Stage
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import Benchmark, Doc
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.confidence import FirstCheck
from lmms_eval_mai.paper.prompts import INSTRUCTIONS, Kind, Variant
from lmms_eval_mai.run.ask import LETTERS
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling
from lmms_eval_mai.serve.errors import RequestError, bad_request
from lmms_eval_mai.serve.images import EncodedImage, read_image
from lmms_eval_mai.serve.limits import Settings
from lmms_eval_mai.serve.schema import ChatRequest, ImagePart, MaiOptions, Message

SHORT_ANSWER_TOKENS = 64
"""A request without an image and without options is a short-answer question if its token limit is at most this."""

PASSED_ON = (
    "This is not a short-answer question, because it has no image, no options, no small max_tokens and no field mai. "
    "One model answered the chat as it is, without the prompts of the cascade."
)

DECODING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "stop"),
)
"""Fields of a request that are decoding arguments of the same name."""

_OPTION = re.compile(
    r"^[ \t]*\(?([A-Z])[.):][ \t]+(\S.*)$",  # "A. red", "A) red", "A: red" or "(A) red"
    re.MULTILINE,
)


@dataclass(frozen=True)
class Turn:
    """One message of the chat: texts, and images that are not decoded yet."""

    role: str
    content: tuple[str | EncodedImage, ...]

    def text(self) -> str:
        """Return all texts of the turn."""
        return "\n".join(part for part in self.content if isinstance(part, str))


@dataclass(frozen=True)
class Question:
    """The question of a request, and how it is asked."""

    turns: tuple[Turn, ...]
    """The chat. Its last turn is the question, without an instruction."""
    mode: str
    variant: Variant | None
    """The prompt. None: the chat is sent to one model as it is."""
    kind: Kind
    benchmark: Benchmark
    doc: Doc
    """The question and its options, for the parsers."""
    sampling: Mapping[Stage, Sampling]
    first_check: FirstCheck
    with_trace: bool
    """Whether the reply has the calls and the parsed answers."""
    streamed: bool
    """Whether the reply is sent in parts."""
    with_usage: bool
    """Whether a streamed reply ends with the tokens of all calls."""


def question_of(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any], settings: Settings) -> Question:
    """Return the question of a request. `gen_kwargs`: decoding arguments that the request may replace. Raises
    `RequestError`."""
    if request.model != settings.model_name:
        name = settings.model_name
        message = f"The model {request.model[:100]!r} is not served here. Give model={name!r}."
        raise RequestError(404, message, "model_not_found", "model")
    if request.stream_options is not None and not request.stream:
        raise bad_request("The field stream_options needs stream=true. Leave it out.", param="stream_options")
    turns = turns_of(request, settings)
    mai = request.mai or MaiOptions()
    mode = _mode(mai, config)
    *before, last = turns
    end = max(number for number, part in enumerate(last.content) if isinstance(part, str))

    def with_end(text: str) -> Turn:
        """Return the last turn with another last text."""
        return Turn(last.role, (*last.content[:end], text, *last.content[end + 1 :]))

    text, variant, kind = split_instruction(str(last.content[end]))
    recognised = options_of(with_end(text).text())
    question = Question(
        turns=turns,
        mode=mode if len(config.engines()) == 1 else "large",
        variant=None,
        kind="word",
        benchmark=GENERIC,
        doc={},
        sampling=decoding_of(request, config, gen_kwargs),
        first_check=_first_check(mai, mode, config),
        with_trace=mai.trace,
        streamed=bool(request.stream),
        with_usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    if not (variant or recognised or _is_short_answer_question(request, turns)):
        return question
    options = _options(mai, kind, recognised)
    if mai.options is not None:
        text = with_options(text, mai.options)
    doc = _doc(mai.benchmark, with_end(text).text(), options)
    if text[-1:].strip() and end == len(last.content) - 1:
        text += "\n"  # before the instruction: so all prompts begin like those of the tasks of this package
    return dataclasses.replace(
        question,
        turns=(*before, with_end(text)),
        mode=mode,
        variant=mai.think or variant or "S",
        kind=mai.kind or ("letter" if mai.options else kind) or ("letter" if options else "word"),
        benchmark=GENERIC if mai.benchmark is None else BENCHMARKS[mai.benchmark],
        doc=doc,
    )


def turns_of(request: ChatRequest, settings: Settings) -> tuple[Turn, ...]:
    """Return the turns of a request, within the limits of the server. The last one is a question of the user. Raises
    `RequestError`."""
    messages = request.messages
    if messages[-1].role != "user":
        raise bad_request(
            f"The last message has the role {messages[-1].role}. It must have the role user, because it is the "
            "question.",
            param="messages",
        )
    if any(message.role in ("system", "developer") for message in messages[1:]):
        raise bad_request("Only the first message may have the role system.", param="messages")
    if any(isinstance(part, ImagePart) for message in messages for part in message.content if message.role != "user"):
        raise bad_request("Only messages with the role user may have images.", param="messages")
    parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
    count = sum(isinstance(part, ImagePart) for part in parts)
    if count > settings.max_images:
        raise _too_large(f"{count} images, and this server takes at most {settings.max_images}")
    texts = [message.content for message in messages if isinstance(message.content, str)]
    texts += [part.text for part in parts if not isinstance(part, ImagePart)]
    texts += (request.mai.options if request.mai else None) or []
    characters = sum(map(len, texts))
    if characters > settings.max_characters:
        raise _too_large(f"{characters:,} characters, and this server takes at most {settings.max_characters:,}")
    images: list[EncodedImage] = []
    turns = tuple(_turn(message, images) for message in messages)
    pixels = sum(image.pixels for image in images)
    if pixels > settings.max_pixels:
        raise bad_request(
            f"The images of this request have {pixels:,} pixels, and this server decodes at most "
            f"{settings.max_pixels:,} (--max-image-megapixels). Send smaller images.",
            "invalid_image",
            "messages",
        )
    if not turns[-1].text().strip():
        raise bad_request("The last message has no text, so there is no question.", "empty_question", "messages")
    return turns


def _turn(message: Message, images: list[EncodedImage]) -> Turn:
    """Return a message as a turn, and append its images to `images`."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        return Turn(role, (replace_lone_surrogates(message.content),))
    parts: list[str | EncodedImage] = []
    for part in message.content:
        if isinstance(part, ImagePart):
            images.append(read_image(part.image_url.url, len(images) + 1))
            parts.append(images[-1])
        else:
            parts.append(replace_lone_surrogates(part.text))
    return Turn(role, tuple(parts))


def _too_large(what: str) -> RequestError:
    return RequestError(413, f"The request has {what}. Send less.", "request_too_large", "messages")


def limit_of(request: ChatRequest) -> int | None:
    """Return the token limit that a request gives."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def decoding_of(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any]) -> dict[Stage, Sampling]:
    """Return how each stage is decoded. `gen_kwargs`: the server's decoding arguments, which a request may replace.

    The token limit of a request applies to the short answers and to a chat that is sent to one model as it is. The
    thinking, and the answers with thinking, have the limit of the server, because a client that wants a short answer
    does not expect that its limit cuts the thinking off. Raises `RequestError`.
    """
    values = {name: value for name in DECODING_FIELDS if (value := getattr(request, name)) is not None}
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    try:
        stages = sampling({**gen_kwargs, **values}, config, own_task=True)
    except ArgumentError:  # the values are checked already, so they differ from those of `decoding=official`
        official = " ".join(f"{name}={value}" for name, value in (config.official_decoding or {}).items())
        raise bad_request(f"This server decodes with {official} (decoding=official). Leave others out.") from None
    if (limit := limit_of(request)) is not None:
        for stage in ("short", "task"):
            own = stages[stage]
            stages[stage] = dataclasses.replace(own, max_tokens=min(limit, config.max_new_tokens or limit))
    return stages


def options_of(text: str) -> list[str]:
    """Return the texts of the last list of options in a text. Empty if it has none.

    A list has a line for each option. Its letters begin with A and have no gap.
    """
    found: list[str] = []
    last: list[str] = []
    for match in _OPTION.finditer(text):
        letter, option = match.group(1), match.group(2).rstrip()
        if letter == "A":
            found = [option]
        elif found and letter == LETTERS[len(found) % len(LETTERS)]:
            found.append(option)
        else:
            found = []
        if len(found) >= 2:
            last = found
    return last


def with_options(text: str, options: Sequence[str]) -> str:
    """Return the question with its options below, each on its own line, as the Python API writes them. A question that
    has these options already is not changed."""
    if options_of(text) == [option.strip() for option in options]:
        return text
    return "\n".join([text.rstrip("\n"), *(f"{letter}. {one}" for letter, one in zip(LETTERS, options, strict=False))])


def split_instruction(text: str) -> tuple[str, Variant | None, Kind | None]:
    """Return the question without an instruction of the paper at its end, and the variant and the kind that the
    instruction asks for. None: the question has none.

    A harness that runs a task of this package on the server sends the instruction of the task with the question.
    """
    stripped = text.rstrip()
    for (variant, kind), instruction in INSTRUCTIONS.items():
        if stripped.endswith(instruction):
            return stripped.removesuffix(instruction), variant, kind
    return text, None, None


def _is_short_answer_question(request: ChatRequest, turns: Sequence[Turn]) -> bool:
    limit = limit_of(request)
    chosen = request.mai.model_dump(exclude={"trace"}, exclude_none=True) if request.mai else {}
    has_image = any(isinstance(part, EncodedImage) for turn in turns for part in turn.content)
    return bool(chosen) or has_image or (limit is not None and limit <= SHORT_ANSWER_TOKENS)


def _mode(mai: MaiOptions, config: Config) -> str:
    if mai.mode is None or mai.mode == config.mode:
        return config.mode
    if len(config.engines()) == 1:
        raise bad_request(
            f"This server has only one model, so mode={mai.mode} cannot work. Give mode={config.mode}, or leave mode "
            "out.",
            param="mai.mode",
        )
    return mai.mode


def _first_check(mai: MaiOptions, mode: str, config: Config) -> FirstCheck:
    """Return the first check of a request."""
    own = config.first_check()
    check = own if mai.verify is None else dataclasses.replace(own, verify=mai.verify)
    named = next((name for name in ("verify", "min_confidence") if getattr(mai, name) is not None), None)
    if named and mode != "cascade":
        raise bad_request(
            f"The field mai.{named} has no effect with mode={mode}, which verifies nothing. Leave it out, or give "
            "mai.mode=cascade.",
            param=f"mai.{named}",
        )
    if mai.min_confidence is not None and check.verify == "agreement":
        raise bad_request(
            "The field mai.min_confidence has no effect with the rule agreement. Give mai.verify=confidence or both, "
            "or leave mai.min_confidence out.",
            param="mai.min_confidence",
        )
    if mai.min_confidence is not None:
        return FirstCheck(check.verify, mai.min_confidence)
    if config.calibration is not None and check.verify not in ("agreement", config.calibration.verify):
        raise bad_request(
            f"The threshold of this server is that of mai.verify={config.calibration.verify}. Give "
            f"mai.min_confidence for mai.verify={check.verify}.",
            param="mai.min_confidence",
        )
    return check


def _options(mai: MaiOptions, kind: Kind | None, recognised: list[str]) -> list[str]:
    """Return the options of the question: those of the field `mai`, else those in the text. Empty for a question whose
    answer is a word."""
    wanted = mai.kind or kind
    if mai.kind == "word" and mai.options is not None:
        raise bad_request(
            "The field mai.options needs the kind letter. Leave mai.kind or mai.options out.", param="mai.kind"
        )
    options = recognised if mai.options is None else mai.options
    if mai.kind == "letter" and not options:
        raise bad_request(
            "The field mai.kind is letter, and no options were found in the question. Give mai.options, or write each "
            "option on its own line, as in 'A. red'.",
            param="mai.kind",
        )
    return [] if wanted == "word" and mai.options is None else list(options)


def _doc(benchmark: str | None, question: str, options: list[str]) -> Doc:
    if benchmark == "mmmu_val":
        kind = "multiple-choice" if options else "open"
        return {"question": question, "question_type": kind, "options": repr(options)}
    if benchmark == "mmbench_en_dev":
        if not 2 <= len(options) <= 4:
            raise bad_request(
                f"The benchmark mmbench_en_dev needs 2 to 4 options, and the question has {len(options)}.",
                param="mai.benchmark",
            )
        return {"question": question, **dict(zip(LETTERS, options, strict=False))}
    return {"question": question, "options": options}
