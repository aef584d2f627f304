"""Chat requests of OpenAI's API: writes their messages and sampling arguments, and reads their replies."""

import asyncio
import base64
import dataclasses
import io
import json
from typing import Any

from lmms_eval_mai.contract import Call, ContentPart, Image, Message, Prompt, Sampling, TokenLogprobs
from lmms_eval_mai.engines.messages import merge_adjacent_text, replace_lone_surrogates
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.redaction import one_line


async def chat_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Return the messages of a request."""
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
    given, neutral = dataclasses.asdict(sampling), dataclasses.asdict(Sampling(0))
    if context is None:
        always = ("max_tokens", "temperature", "top_p")
        return {name: value for name, value in given.items() if name in always or value != neutral[name]}
    return given | {"max_tokens": min(sampling.max_tokens, context)}  # vLLM refuses a number above its context


def to_call(prompt: Prompt, reply: str, total_s: float) -> Call:
    """Return the call of a chat reply. Raises `SampleError` if the reply has no complete answer."""
    try:
        answer = json.loads(reply)
        choice, usage = answer["choices"][0], answer["usage"]
        if choice["finish_reason"] not in ("stop", "length"):
            raise ValueError("the server ended the answer")
        tokens = (choice.get("logprobs") or {}).get("content") if prompt.logprobs else None
        values = (min(0.0, float(token["logprob"])) for token in tokens or ())
        return Call(
            key=prompt.key,
            text=replace_lone_surrogates(choice["message"]["content"]),  # lmms-eval could not write them
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            output_tokens=usage["completion_tokens"],
            queued_s=None,
            ttft_s=None,
            total_s=total_s,
            logprobs=TokenLogprobs(tuple(token["token"] for token in tokens), tuple(values)) if tokens else None,
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise SampleError(
            f"{prompt.key}: the server returned no complete answer ({one_line(reply)}). Check its log. A server with a "
            "reasoning parser returns no text: serve the model without it."
        ) from error
