"""Chat requests of OpenAI's API: writes their messages and sampling arguments, and reads their replies."""

import asyncio
import base64
import dataclasses
import io
import json
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, Field, ValidationError

from lmms_eval_mai.contract import ContentPart, Image, Message, Prompt, Reply, Sampling, TokenLogprobs
from lmms_eval_mai.engines.messages import merge_adjacent_text, replace_lone_surrogates
from lmms_eval_mai.engines.thinking import split, without_budget, without_empty
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.redaction import one_line


async def chat_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    return [
        {"role": message.role, "content": [await _part(part) for part in merge_adjacent_text(message.content)]}
        for message in messages
    ]


async def _part(part: ContentPart) -> dict[str, Any]:
    if not isinstance(part, Image):
        return {"type": "text", "text": part}
    if not part.encodings:  # encode the image once; both engines wait for it
        part.encodings.append(asyncio.ensure_future(asyncio.to_thread(data_url, part)))
    return {"type": "image_url", "image_url": {"url": await asyncio.shield(part.encodings[0])}}


def data_url(image: Image) -> str:
    """Return the image as `data:image/png;base64,...`. PNG is lossless, so a server sees the same pixels as an engine
    in this process."""
    file = io.BytesIO()
    image.pixels.save(file, "PNG", compress_level=1)  # level 6, the default, takes 2 to 5 times as long
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def sampling_arguments(sampling: Sampling, context: int | None) -> dict[str, Any]:
    """Return the sampling arguments of a request. `context`: tokens, None if the server does not report it.

    A server that reports its context (vLLM, SGLang) gets all arguments, because it would use the checkpoint's defaults
    instead. Other servers get only values that change something: OpenAI's own API refuses some of these arguments.
    """
    neutral = dataclasses.asdict(Sampling(0))
    if context is None:
        given = dataclasses.asdict(without_budget(sampling))
        always = {"max_tokens", "temperature", "top_p"}
    else:
        max_tokens = min(sampling.max_tokens, context)  # vLLM refuses a number above its context
        given = dataclasses.asdict(sampling) | {"max_tokens": max_tokens}
        always = given.keys() - {"thinking_token_budget", "repetition_detection"}
    return {name: value for name, value in given.items() if name in always or value != neutral[name]}


def _at(first: str, *path: str | int, **field: Any) -> Any:
    return Field(validation_alias=AliasPath(first, *path), **field)


Tokens = Annotated[int, Field(strict=True, ge=0)]
Parts = Annotated[list["_Part"], BeforeValidator(lambda it: it if isinstance(it, list) else [{"text": it or ""}])]
"""A text, or a list of parts as Mistral has it."""


class _Part(BaseModel):
    text: str = ""
    thinking: Parts = []


class _Token(BaseModel):
    token: str
    logprob: float = Field(strict=True, allow_inf_nan=False, le=0.001)  # vLLM may round 0 up


class _Reply(BaseModel):
    """The fields of a reply that a call uses."""

    finish_reason: Literal["stop", "length", "repetition"] = _at("choices", 0, "finish_reason")
    content: Parts = _at("choices", 0, "message", "content", default=[])
    reasoning: str | None = _at("choices", 0, "message", "reasoning", default=None)  # vLLM
    reasoning_content: str | None = _at("choices", 0, "message", "reasoning_content", default=None)  # DeepSeek
    logprobs: list[_Token] | None = _at("choices", 0, "logprobs", "content", default=None)
    prompt_tokens: Tokens = _at("usage", "prompt_tokens")
    cached_tokens: Tokens | None = _at("usage", "prompt_tokens_details", "cached_tokens", default=None)
    completion_tokens: Tokens = _at("usage", "completion_tokens")

    def text(self, native: bool) -> tuple[str | None, str]:
        """Return the thinking of a native call, and the content. The text of another call is the thinking in its tags
        and then the content, as the same model gives them in this process."""
        content = "".join(part.text for part in self.content)
        thinking = "".join(inner.text for part in self.content for inner in part.thinking)
        thinking = (self.reasoning or self.reasoning_content or thinking).strip()
        is_cut = self.finish_reason != "stop"
        if not content.strip() and not (thinking and (native or is_cut)):
            raise ValueError("it has no content (does the server's reasoning parser fit the model?)")
        if native:
            return (thinking, content.lstrip()) if thinking else split(content, "", is_cut)
        if not thinking:
            return None, without_empty(content)
        end = f"\n</think>\n\n{content.lstrip()}" if content.strip() else ""  # without content it was cut
        return None, f"<think>\n{thinking}{end}"


class _ErrorReply(BaseModel):
    code: Annotated[int, Field(ge=400, le=599)] = Field(
        validation_alias=AliasChoices(AliasPath("error", "code"), AliasPath("choices", 0, "error", "code"))
    )


def error_status(reply: str) -> int:
    """Return the status of the error in a reply of status 200, as routers send it; 0 if there is none."""
    try:
        return _ErrorReply.model_validate_json(reply).code
    except ValidationError:
        return 0


def to_reply(prompt: Prompt, reply: str, total_s: float) -> Reply:
    """Read a chat reply. Raises `SampleError` if the reply has no complete answer or an invalid field."""
    try:
        # lmms-eval could not write lone surrogates.
        fields = _Reply.model_validate_json(replace_lone_surrogates(json.dumps(json.loads(reply), ensure_ascii=False)))
        thinking, text = fields.text(prompt.native)
    except ValueError as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc'])) or 'reply'}: {first['msg']}"
        raise SampleError(
            f"{prompt.key}: the server's reply is no complete answer: {problem} ({one_line(reply)}). Check its log."
        ) from error
    tokens = fields.logprobs if prompt.logprobs else None
    values = (min(0.0, token.logprob) for token in tokens or ())
    return Reply(
        text=text,
        thinking=thinking,
        finish_reason=fields.finish_reason,
        prompt_tokens=fields.prompt_tokens,
        cached_tokens=fields.cached_tokens or 0,
        output_tokens=fields.completion_tokens,
        queued_s=None,
        ttft_s=None,
        total_s=total_s,
        logprobs=TokenLogprobs(tuple(token.token for token in tokens), tuple(values)) if tokens else None,
    )
