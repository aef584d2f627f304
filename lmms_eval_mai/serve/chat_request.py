"""The body of a chat request: its fields and images, checked by pydantic, within the limits of the server."""

import base64
import io
import json
import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

import PIL.Image
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from lmms_eval_mai.contract import Image
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import UnreadableImage
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.redaction import one_line
from lmms_eval_mai.run.ask import open_image
from lmms_eval_mai.run.decoding import NextToken
from lmms_eval_mai.serve import Settings
from lmms_eval_mai.serve.errors import RequestError, bad_request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded. Pillow's others start programs or are rare, so they only make attacks easier."""
DATA_URL = re.compile(rb"data:[^,\"\s]{0,100};base64,[\w+/=\\-]*", re.IGNORECASE)
"""An image in the body of a request, where JSON may have a backslash before a slash. The type may be any or missing."""
OTHER_REPLY: dict[str, list[Any]] = {
    "tools": [], "tool_choice": ["none", "auto"], "functions": [], "function_call": ["none", "auto"], "n": [1],
    "response_format": [{"type": "text"}], "structured_outputs": [], "modalities": [["text"]], "audio": [],
    "web_search_options": [], "logprobs": [], "prompt_logprobs": [], "logit_bias": [], "use_beam_search": [],
    "echo": [], "continue_final_message": [],
}  # fmt: skip
"""Fields of OpenAI and vLLM that ask for another reply -> the values, besides `NOTHING`, that do not."""
NOTHING: list[Any] = [None, False, 0, "", [], {}]


@dataclass(frozen=True)
class EncodedImage:
    """An image of a request that is not decoded yet."""

    size: tuple[int, int]
    data: bytes = field(repr=False)

    def decode(self, number: int) -> Image:
        """Decode the image. This blocks, so run it in a thread. `number`: that of the image in the request. Raises
        `RequestError`."""
        try:
            return open_image(io.BytesIO(self.data), FORMATS)
        except UnreadableImage as error:
            text = f"Image {number} of the request is broken or not complete ({error.__cause__})."
            raise bad_request(text, "messages", "invalid_image") from error


def _read_image(image_url: Any) -> EncodedImage:
    """Return the image of `{"url": "data:..."}`, and read its size. Raises `ValueError`."""
    url = image_url.get("url") if isinstance(image_url, dict) else image_url
    if not (isinstance(url, str) and url[:5].lower() == "data:"):
        raise ValueError("expected the image itself, data:image/png;base64,..., because nothing is downloaded")
    text = "".join(url.partition(",")[2].split())
    if "%" in text:
        raise ValueError("expected base64 as it is, without percent-encoding (+ is written as %2B there)")
    try:
        data = base64.b64decode(text, validate=True)
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return EncodedImage(image.size, data)
    except Exception as error:  # as in `open_image`
        reason = str(error).partition(" <")[0]  # Pillow shows the file object
        raise ValueError(f"expected a whole {', '.join(FORMATS)} file in base64 ({reason})") from None


class Fields(BaseModel):
    """A part of the body. null counts as not given, and other fields are ignored, as clients send many of them. A
    `RequestError` of a validator is raised as it is."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _given(cls, part: Any) -> Any:
        return {name: value for name, value in part.items() if value is not None} if isinstance(part, dict) else part


class Part(Fields):
    type: Literal["text", "image_url"]
    text: str = ""
    image_url: Annotated[EncodedImage | None, PlainValidator(_read_image)] = None


def _listed(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Message(Fields):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], Field(max_length=256, fail_fast=True), BeforeValidator(_listed)] = []

    def parts(self) -> list[str | EncodedImage]:
        """Return the texts and images. If all images of the user come after the text, as in OpenAI's examples, they are
        put before it: the models were trained so, and prompts about an image share its tokens."""
        parts = [part.image_url or part.text for part in self.content]
        are_images = [part.image_url is not None for part in self.content if part.image_url or part.text.strip()]
        is_text_first = self.role == "user" and are_images == sorted(are_images)
        return sorted(parts, key=lambda part: isinstance(part, str)) if is_text_first else parts

    def images(self) -> list[EncodedImage]:
        return [part.image_url for part in self.content if part.image_url]


class MaiOptions(Fields):
    """How the cascade asks the question: the field `mai` of a request (docs/serve.md). None: as the server does."""

    model_config = ConfigDict(extra="forbid")
    method: str | None = None
    think: Literal["E", "R", "native"] | None = None
    min_confidence: Annotated[float | None, Field(gt=0, le=1)] = None
    options: Annotated[list[str] | None, Field(min_length=2, max_length=26)] = None
    kind: Literal["letter", "word", "free"] | None = None
    benchmark: Literal[tuple(BENCHMARKS)] | None = None  # type: ignore[valid-type]
    trace: bool = True


class StreamOptions(Fields):
    include_usage: bool = False


Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=16)]


class ChatRequest(NextToken, Fields):
    """The body of a request to `/v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000, fail_fast=True)]
    mai: MaiOptions = MaiOptions()
    max_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    stop: Annotated[Stops, BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, body: Any) -> Any:
        """Refuse a field that asks for another reply, and an unknown one that is nearly one of ours."""
        if not isinstance(body, dict):
            return body
        for name, allowed in OTHER_REPLY.items():
            if body.get(name) not in NOTHING + allowed:
                text = f"Only {name}={json.dumps(allowed[0])} is" if allowed else f"{name} is not"
                raise bad_request(f"{text} supported. Leave it out.", name)
        unknown = [name for name in body if name not in cls.model_fields and name not in OTHER_REPLY]
        for name in unknown[:100]:  # a hostile body may have 100,000
            if near := get_close_matches(name[:100], cls.model_fields, cutoff=0.85):
                raise bad_request(f"{name[:100]} is unknown. Did you mean {near[0]}?", name)
        return body

    @model_validator(mode="after")
    def _check_turns(self) -> Self:
        for number, message in enumerate(self.messages):
            name = f"messages[{number}]"
            has = f"{name} has the role {message.role}"
            if number and message.role in ("system", "developer"):
                raise bad_request(f"{has}. Only the first message may have it.", f"{name}.role")
            if message.role != "user" and message.images():
                raise bad_request(f"{has} and an image. Only the user may send images.", f"{name}.content")
            is_last = number == len(self.messages) - 1
            if is_last and message.role != "user":
                raise bad_request(f"{has}. The last message must be the question of the user.", f"{name}.role")
            if is_last and not any(part.text.strip() for part in message.content):
                raise bad_request(f"{has} and no text. The last message needs a question.", f"{name}.content")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def images(self) -> list[EncodedImage]:
        return [image for message in self.messages for image in message.images()]


def read_request(body: bytes | bytearray, settings: Settings) -> ChatRequest:
    """Read the body of a request, within the limits of the server. Raises `RequestError`."""
    text, count = DATA_URL.subn(b"", body)
    if count > settings.max_images or len(text) > settings.max_text_mib * 2**20:
        limits = f"{settings.max_images} images, or more than {settings.max_text_mib:g} MiB besides them"
        raise RequestError(413, f"The body has more than {limits}. Send less.", "request_too_large")
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _first_error(error) from None
    if request.model != settings.model_name:
        sentence = f"The model {request.model[:100]!r} is not served here. Give model={settings.model_name!r}."
        raise RequestError(404, sentence, "model_not_found", "model")
    images = request.images()
    if len(images) > settings.max_images:  # JSON escapes may hide an address from the count above
        sentence = f"The request has more than {settings.max_images} images. Send fewer."
        raise RequestError(413, sentence, "request_too_large", "messages")
    if sum(math.prod(image.size) for image in images) > settings.max_image_megapixels * 1e6:
        limit = f"{settings.max_image_megapixels:g} megapixels (--max_image_megapixels)"
        sentence = f"Together the images have more than {limit}. Send smaller or fewer ones."
        raise RequestError(413, sentence, "request_too_large", "messages")
    return request


def _first_error(error: ValidationError) -> RequestError:
    """Return the error about the first wrong field as a sentence. It names the field, and not its value."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])[1:201]
    text = one_line(problem["msg"].removeprefix("Value error, "))
    if problem["type"] == "json_invalid":
        return bad_request(f"The body is not JSON ({text}).", code="invalid_json")
    if problem["type"] == "extra_forbidden":
        text = f"{path} is unknown.{did_you_mean(str(problem['loc'][-1])[:100], MaiOptions.model_fields)}"
    else:
        text = f"{f'The field {path}' if path else 'The body'} is invalid: {text.rstrip('.')}."
    code = "invalid_image" if path.endswith("image_url") else "invalid_value"
    return bad_request(text, path or None, code)
