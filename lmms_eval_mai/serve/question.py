"""Turns a chat request into a question for the cascade, or into a chat for one model."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import Sampling, Stage
from lmms_eval_mai.paper.agreement import Benchmark, Doc
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.prompts import Kind, Variant
from lmms_eval_mai.run.ask import LETTERS
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.serve.decoding import decoding_of, limit_of
from lmms_eval_mai.serve.errors import RequestError, bad_request
from lmms_eval_mai.serve.recognition import options_of, split_instruction, with_options
from lmms_eval_mai.serve.schema import ChatRequest, MaiOptions
from lmms_eval_mai.serve.settings import Settings
from lmms_eval_mai.serve.turns import Turn, images_of, remote_images_of, turns_of

SHORT_ANSWER_TOKENS = 64
"""A request without an image and without options is a short-answer question if its token limit is at most this."""

PASSED_ON = (
    "This is not a short-answer question, because it has no image, no options, no small max_tokens and no field mai. "
    "One model answered the chat as it is, without the prompts of the cascade."
)


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
    with_trace: bool
    """Whether the reply has the calls and the parsed answers."""
    streamed: bool = False
    """Whether the reply is sent in parts."""
    with_usage: bool = False
    """Whether a streamed reply ends with the tokens of all calls."""


def question_of(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any], settings: Settings) -> Question:
    """Return the question of a request. `gen_kwargs`: decoding arguments that the request may replace. Raises
    `RequestError`."""
    if request.model != settings.model_name:
        name = settings.model_name
        message = f"The model {request.model[:100]!r} is not served here. Give model={name!r}."
        raise RequestError(404, message, "model_not_found", "model")
    streamed = bool(request.stream)
    with_usage = request.stream_options is not None and bool(request.stream_options.include_usage)
    if request.stream_options is not None and not streamed:
        raise bad_request("The field stream_options needs stream=true. Leave it out.", param="stream_options")
    question = _question(request, config, gen_kwargs, settings)
    return dataclasses.replace(question, streamed=streamed, with_usage=with_usage)


def _question(request: ChatRequest, config: Config, gen_kwargs: Mapping[str, Any], settings: Settings) -> Question:
    turns = turns_of(request, settings)
    decoding = decoding_of(request, config, gen_kwargs)
    mai = request.mai or MaiOptions()
    mode = _mode(mai, config)
    *before, last = turns
    end = max(number for number, part in enumerate(last.content) if isinstance(part, str))
    text, variant, kind = split_instruction(str(last.content[end]))
    last = Turn(last.role, (*last.content[:end], text, *last.content[end + 1 :]))
    recognised = options_of(last.text())
    if not (variant or recognised or _is_short_answer_question(request, turns)):
        mode = mode if len(config.engines()) == 1 else "large"
        return Question(turns, mode, None, "word", GENERIC, _doc(None, last.text(), []), decoding, mai.trace)

    options = _options(mai, kind, recognised)
    if mai.options is not None:
        last = _with_options(last, end, mai.options)
    doc = _doc(mai.benchmark, last.text(), options)
    return Question(
        turns=(*before, _with_line_break(last)),
        mode=mode,
        variant=mai.think or variant or "S",
        kind=mai.kind or ("letter" if mai.options else kind) or ("letter" if options else "word"),
        benchmark=GENERIC if mai.benchmark is None else BENCHMARKS[mai.benchmark],
        doc=doc,
        sampling=decoding,
        with_trace=mai.trace,
    )


def _is_short_answer_question(request: ChatRequest, turns: Sequence[Turn]) -> bool:
    limit = limit_of(request)
    chosen = request.mai.model_dump(exclude={"trace"}, exclude_none=True) if request.mai else {}
    has_image = any(images_of(turns)) or any(remote_images_of(turns))
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
    """Return the fields that the parser of the benchmark reads."""
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


def _with_options(turn: Turn, end: int, options: Sequence[str]) -> Turn:
    """Return the turn with the options below its last text, which has the number `end`."""
    return Turn(
        turn.role, (*turn.content[:end], with_options(str(turn.content[end]), options), *turn.content[end + 1 :])
    )


def _with_line_break(turn: Turn) -> Turn:
    """Return the turn with a line break at its end, before the instruction. The beginning of all prompts of a question
    is then the same as in the tasks of this package."""
    *parts, end = turn.content
    if not isinstance(end, str) or end[-1:].isspace() or not end:
        return turn
    return Turn(turn.role, (*parts, f"{end}\n"))
