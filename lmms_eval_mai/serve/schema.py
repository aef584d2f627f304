"""The fields of a chat request, checked by pydantic, and errors about them as sentences.

A field that would change the answer and is not supported is refused. Fields without an effect on the answer are read
and ignored.
"""

from typing import Annotated, Any, Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.redaction import one_line
from lmms_eval_mai.serve.errors import RequestError, bad_request

MAX_ERRORS = 100
"""The error about a body with more wrong fields names none of them. pydantic describes all of them or none, and to
describe a million takes minutes and gigabytes, while all other requests wait."""
MAX_SIGNS = 200_000
"""A body with more of the signs in `SIGNS` is not parsed. They are counted in texts too, which is fast. Each value and
each field of JSON needs one of them, and may take 60 times its size in memory."""
SIGNS = (b",", b":", b"[", b"{")


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TextPart(_Fields):
    """A text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(_Fields):
    """The address of an image."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None
    """Ignored: images keep their size."""


class ImagePart(_Fields):
    """An image of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class Message(_Fields):
    """A message of the chat. All fields but `role` and `content` are ignored; clients send back what they received."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(max_length=256)]
    """Only a turn of the user may have images."""
    name: str | None = None
    refusal: None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_content: str | None = None


class MaiOptions(_Fields):
    """How the cascade asks the question: the field `mai` of a request."""

    mode: Literal["cascade", "transfer", "small", "large"] | None = None
    """Default: the mode of the server."""
    think: Literal["E", "R"] | None = None
    """The thinking prompt. In the modes `small` and `large`, the model thinks only if it is given."""
    verify: Literal["agreement", "confidence", "both"] | None = None
    """The first check of the cascade. Default: that of the server."""
    min_confidence: Annotated[float, Field(gt=0, le=1)] | None = None
    """The threshold of a first check by confidence. Default: that of the server."""
    options: Annotated[list[str], Field(min_length=2, max_length=26)] | None = None
    """The texts of the answers to choose from. The answer is a letter."""
    kind: Literal["letter", "word"] | None = None
    """The form of the answer."""
    benchmark: Literal[tuple(BENCHMARKS)] | None = None  # type: ignore[valid-type]
    """The benchmark whose rules of agreement are used."""
    trace: bool = True
    """Whether the reply has the calls and the parsed answers."""


class StreamOptions(_Fields):
    """Options of a streamed reply."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFormat(_Fields):
    """The only supported format of the reply."""

    type: Literal["text"]


Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]


class ChatRequest(_Fields):
    """The body of a request to `/v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    mai: MaiOptions | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**62), le=2**62)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Supported with these values only:
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    # Ignored:
    ignore_eos: bool | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: str | None = None


def read_request(body: bytes | bytearray) -> ChatRequest:
    """Read the body of a request. Raises `RequestError`."""
    if sum(map(body.count, SIGNS)) > MAX_SIGNS:
        text = f"The body has more than {MAX_SIGNS:,} commas, colons and opening brackets. Send less."
        raise RequestError(413, text, "request_too_large")
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _first_error(error, body) from None


def _first_error(error: ValidationError, body: bytes | bytearray) -> RequestError:
    """Return the error about the first wrong field as a sentence. It names the field, and not its value."""
    if error.error_count() > MAX_ERRORS:
        return bad_request(f"The body has {error.error_count():,} invalid fields. Read the description of its format.")
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A field that may be a text or a list has an error of each kind. The one that is not about the kind helps more.
    first = errors[0]["loc"][:1]
    found = max(errors, key=lambda one: (one["loc"][:1] == first, len(one["loc"]), one["type"] == "too_long"))
    if found["type"] == "json_invalid":
        return bad_request(f"The body is not JSON ({one_line(found['msg'])}).", "invalid_json")
    param = _path(found["loc"], body)
    if found["type"] == "extra_forbidden":
        known = MaiOptions.model_fields if found["loc"][0] == "mai" else ChatRequest.model_fields
        hint = did_you_mean(str(found["loc"][-1])[:100], known)
        return bad_request(f"The field {param} is not supported.{hint} Leave it out.", "unsupported_field", param)
    if found["type"] == "missing":
        return bad_request(f"The field {param} is missing.", "missing_field", param)
    where = f"The field {param}" if param else "The body"
    return bad_request(f"{where} is invalid: {one_line(found['msg'])}.", "invalid_value", param or None)


def _path(location: tuple[int | str, ...], body: bytes | bytearray) -> str:
    """Return the place of a field, such as `messages[0].content`. The location also has pydantic's names of types,
    which are not in the body."""
    node, path = pydantic_core.from_json(body), ""
    for number, part in enumerate(location):
        inside = (isinstance(node, dict) and part in node) or (
            isinstance(node, list) and isinstance(part, int) and part < len(node)
        )
        if inside:
            node = node[part]
        elif number < len(location) - 1 or not isinstance(node, dict):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path if len(path) <= 200 else path[:197] + "..."
