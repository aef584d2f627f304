"""A chat as vLLM's engine takes it. Template, tokens and images are vLLM's own, but for one thing: text that looks like
a special token stays text.

`<|im_end|>` in a document, or in the small model's thinking, would end the turn; `<|image_pad|>` would be taken for a
picture. So in a chat that holds such text, every text is first hidden behind a mark that no template touches, and put
in its place as tokens of plain text.

Some models' place for a picture is plain text itself (InternVL's `<image>`). vLLM looks for its tokens, and where they
are not found, since `>` and a line break are one token, it replaces in the decoded text and reads that anew, special
tokens and all. So its tokens are kept apart in the template, and are never those of the same letters in a text.
"""

import asyncio
import itertools
import re
import secrets
import time
import weakref
from concurrent.futures import Future
from typing import Any

from lmms_eval_mai.engines.base import Image, Message
from lmms_eval_mai.engines.literal_text import LiteralTokenizer, special_tokens
from lmms_eval_mai.engines.messages import merge_adjacent_text


class Renderer:
    """vLLM's renderer of one kind of prompts."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        tokenizer = renderer.get_tokenizer()
        self._place = image_placeholder(renderer.model_config, special_tokens(tokenizer))
        self.plain = LiteralTokenizer(tokenizer, [self._place] if self._place else [])
        self._place_tokens = self.plain.tokens(self._place) if self._place else []
        # vLLM's own is held by circles of references, and its pictures may take gigabytes.
        weakref.finalize(self, _end, renderer).atexit = False

    async def render(self, messages: tuple[Message, ...]) -> Any:
        """The engine's input. Raises what vLLM raises for prompts that do not fit and pictures it cannot take.

        vLLM waits with `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that comes just as the
        waiting ends (CPython's issue #86296): so this does not wait for the end of a cancelled rendering.
        """
        rendering = asyncio.ensure_future(self._render(messages))
        try:
            return await asyncio.shield(rendering)
        except asyncio.CancelledError:
            rendering.cancel()
            raise

    async def clear_caches(self) -> None:
        """Empty the cache of pictures."""
        await asyncio.wrap_future(clear_image_cache(self._renderer))

    async def _render(self, messages: tuple[Message, ...]) -> Any:
        from vllm.renderers.params import ChatParams

        hidden: list[str] = []
        mark = secrets.token_hex(4) if self._looks_special(messages) else None
        chat = [_message(message, mark, hidden) for message in messages]
        parameters = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})
        _, prompt = await self._renderer.render_messages_async(chat, parameters)
        if mark is not None:
            text = prompt.pop("prompt")
            prompt["prompt_token_ids"] = self._tokens(text, mark, hidden)
        (tokens,) = await self._renderer.tokenize_prompts_async([prompt], self._renderer.default_chat_tok_params)
        return await self._renderer.process_for_engine_async(tokens, time.time(), skip_mm_cache=True)

    def _looks_special(self, messages: tuple[Message, ...]) -> bool:
        texts = ("".join(block for block in message.content if isinstance(block, str)) for message in messages)
        return any(map(self.plain.is_marked, texts))

    def _tokens(self, text: str, mark: str, hidden: list[str]) -> list[int]:
        """The template's parts with their special tokens, the hidden texts without any."""
        ids: list[int] = []
        for number, part in enumerate(re.split(f"{mark}-(\\d+)-", text)):
            if number % 2:
                ids += self._text_without_places(hidden[int(part)])
                continue
            for place, piece in enumerate(part.split(self._place) if self._place else [part]):
                ids += self._place_tokens if place else []
                ids += self.plain.tokens(piece, special=True)
        return ids

    def _text_without_places(self, text: str) -> list[int]:
        """A text's tokens; those of a picture's place in it are cut otherwise, inside their first long one."""
        if not self._place or self._place not in text:
            return self.plain.tokens(text)
        starts = [self.plain.text(self._place_tokens[:n]) for n in range(len(self._place_tokens) + 1)]
        cut = next((len(a) + 1 for a, b in itertools.pairwise(starts) if len(b) > len(a) + 1), 1)
        first, last = self._place[:cut], self._place[cut:]
        pieces = text.split(self._place)
        fragments = [last * (n > 0) + piece + first * (n + 1 < len(pieces)) for n, piece in enumerate(pieces)]
        return [token for fragment in fragments for token in self.plain.tokens(fragment)]


def clear_image_cache(renderer: Any) -> "Future[None]":
    """In the one thread that uses their cache, between two of them: one may be in work that nobody waits for."""
    cache = renderer._mm_processor_only_cache
    dropped: Future[None] = renderer._mm_executor.submit(lambda: None if cache is None else cache.clear_cache())
    return dropped


def _end(renderer: Any) -> None:
    clear_image_cache(renderer)
    renderer.shutdown()


def image_placeholder(model_config: Any, special: list[str]) -> str | None:
    """What stands for a picture in a prompt, if it is plain text."""
    from vllm.model_executor.model_loader import get_model_cls

    if not model_config.is_multimodal_model:
        return None
    model: Any = get_model_cls(model_config)
    place: str | None = model.get_placeholder_str("image", 1)
    return None if place is None or any(token in place for token in special) else place


def _message(message: Message, mark: str | None, hidden: list[str]) -> dict[str, Any]:
    """A chat message as vLLM takes it."""
    content: list[dict[str, Any]] = []
    for block in merge_adjacent_text(message.content):
        if isinstance(block, Image):
            content.append({"type": "image_pil", "image_pil": block.pixels, "uuid": block.uuid})
            continue
        if mark is not None:
            hidden.append(block)
            block = f"{mark}-{len(hidden) - 1}-"
        content.append({"type": "text", "text": block})
    return {"role": message.role, "content": content}
