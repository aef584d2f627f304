"""Chat requests of OpenAI's API: writes their messages and sampling arguments, and reads their replies.

Images are sent as PNG in a data URL. Each image is encoded once per sample, in a thread.
"""

import asyncio
import base64
import codecs
import io
import itertools
import math
import weakref
from typing import Any

from PIL.Image import Resampling

from lmms_eval_mai.contract import Call, Image, Message, Prompt, Sampling, TokenLogprobs
from lmms_eval_mai.engines.messages import merge_adjacent_text, replace_lone_surrogates
from lmms_eval_mai.errors import SampleError
from lmms_eval_mai.redaction import one_line

_ENCODINGS: "weakref.WeakKeyDictionary[Image, dict[int | None, asyncio.Future[str]]]" = weakref.WeakKeyDictionary()
"""For each image, its data URLs by `max_pixels`. An entry is kept as long as its sample; both engines use it."""


async def chat_messages(messages: tuple[Message, ...], max_pixels: int | None) -> list[dict[str, Any]]:
    """Return the messages of a request."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": "image_url", "image_url": {"url": await data_url(part, max_pixels)}}
                if isinstance(part, Image)
                else {"type": "text", "text": part}
                for part in merge_adjacent_text(message.content)
            ],
        }
        for message in messages
    ]


async def data_url(image: Image, max_pixels: int | None = None) -> str:
    """Return the image as `data:image/png;base64,...`.

    PNG is lossless, so a server sees the same pixels as an engine in this process. An image with more than `max_pixels`
    is made smaller first; its proportions stay.
    """
    encodings = _ENCODINGS.setdefault(image, {})
    encoding = encodings.get(max_pixels)
    if encoding is None:
        encoding = encodings[max_pixels] = asyncio.ensure_future(asyncio.to_thread(_encode, image, max_pixels))
    return await asyncio.shield(encoding)  # another call may wait for the same encoding


def _encode(image: Image, max_pixels: int | None) -> str:
    pixels = image.pixels
    if max_pixels is not None and pixels.width * pixels.height > max_pixels:
        scale = math.sqrt(max_pixels / (pixels.width * pixels.height))
        size = max(1, int(pixels.width * scale)), max(1, int(pixels.height * scale))
        pixels = pixels.resize(size, Resampling.BICUBIC)
    file = io.BytesIO()
    pixels.save(file, "PNG", compress_level=1)  # level 6, the default, takes 2 to 5 times as long
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def sampling_arguments(sampling: Sampling, context: int | None) -> dict[str, Any]:
    """Return the sampling arguments of a request. `context`: tokens, None if the server does not report it.

    A server that reports its context (vLLM, SGLang) always gets all arguments, because it would use the checkpoint's
    defaults instead. Other servers get only values that change something, because OpenAI's own API refuses some of
    these arguments.
    """
    arguments: dict[str, Any] = {
        # vLLM refuses a number above its context length.
        "max_tokens": min(sampling.max_tokens, context or sampling.max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    more = {
        "presence_penalty": (sampling.presence_penalty, 0.0),
        "frequency_penalty": (sampling.frequency_penalty, 0.0),
        "top_k": (sampling.top_k, 0),
        "min_p": (sampling.min_p, 0.0),
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
    }
    arguments |= {name: value for name, (value, default) in more.items() if context or value != default}
    if sampling.stop:
        arguments["stop"] = list(sampling.stop)
    if sampling.ignore_eos:
        arguments["ignore_eos"] = True
    if sampling.seed is not None:
        arguments["seed"] = sampling.seed
    return arguments


def to_call(prompt: Prompt, reply: Any, total_s: float) -> Call:
    """Return the call of a chat reply. Raises `SampleError` if the reply has no complete answer."""
    try:
        choice, usage = reply["choices"][0], reply["usage"]
        finish_reason, message = choice["finish_reason"], choice["message"]
        text, prompt_tokens, output_tokens = message.get("content"), usage["prompt_tokens"], usage["completion_tokens"]
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        problem = reply.get("error") if isinstance(reply, dict) else None
        problem = problem or "the reply has no choices or no token counts"
        raise SampleError(
            f"{prompt.key}: the server returned no answer ({one_line(str(problem))}). Check its log."
        ) from error
    if finish_reason not in ("stop", "length"):
        raise SampleError(f"{prompt.key}: the server ended the answer with {finish_reason!r}. Check its log.")
    if not isinstance(text, str):
        refusal = message.get("refusal")
        if refusal:
            raise SampleError(f"{prompt.key}: the model refused to answer ({one_line(refusal)}).")
        raise SampleError(
            f"{prompt.key}: the server's answer has no text. If the server uses a reasoning parser, serve the model "
            "without it."
        )
    return Call(
        key=prompt.key,
        text=replace_lone_surrogates(text),  # lmms-eval could not write them
        finish_reason=finish_reason,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        queued_s=None,
        ttft_s=None,
        total_s=total_s,
        logprobs=token_logprobs(choice.get("logprobs"), text),
    )


def token_logprobs(reported: Any, text: str) -> TokenLogprobs | None:
    """Return the log-probabilities in a choice of a reply. None: the reply has none.

    `text`: the answer. Tokens after its end, which are the end token and a stop text, have the text "".
    """
    try:
        tokens = [(entry["token"], entry.get("bytes"), float(entry["logprob"])) for entry in reported["content"]]
        if all(data is not None for _, data, _ in tokens):
            # A token may be a part of a character. The character then belongs to its last token.
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            texts = [decoder.decode(bytes(data)) for _, data, _ in tokens]
        else:
            texts = [token for token, _, _ in tokens]
    except (KeyError, TypeError):
        return None
    if not tokens:
        return None
    # Servers differ in how they show bytes that are no character: U+FFFD in the answer may be no text in its token.
    lengths = [len(token.replace("\ufffd", "")) for token in texts]
    shown = text.replace("\ufffd", "")
    if "".join(texts).replace("\ufffd", "").startswith(shown):
        starts = itertools.accumulate(lengths, initial=0)
        texts = [token if start < len(shown) else "" for token, start in zip(texts, starts, strict=False)]
    return TokenLogprobs(tuple(texts), tuple(min(0.0, value) for _, _, value in tokens))
