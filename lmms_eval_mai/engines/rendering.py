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
import contextlib
import copy
import itertools
import re
import secrets
import time
from typing import Any

from lmms_eval_mai.engines.base import Image, Turn
from lmms_eval_mai.engines.chat import joined


class Renderer:
    """vLLM's renderer of one engine."""

    def __init__(self, llm: Any) -> None:
        self._renderer = llm.renderer
        tokenizer = self._renderer.get_tokenizer()
        # A copy: reading special tokens as text is a state of the tokenizer, which vLLM uses in threads of its own.
        self._tokenizer = copy.deepcopy(tokenizer)
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._unheard: set[asyncio.Future[Any]] = set()
        self._place = _plain_place(llm, special)
        self._place_tokens = self.text_tokens(self._place) if self._place else []
        marked = [*special, *([self._place] if self._place else [])]
        self._special = re.compile("|".join(map(re.escape, marked))) if marked else None

    async def render(self, turns: tuple[Turn, ...]) -> Any:
        """The engine's input. Raises what vLLM raises for prompts that do not fit and pictures it cannot take.

        A cancelled one ends all the same, unheard: vLLM waits with `asyncio.wait_for`, which before Python 3.12 forgets
        a cancellation that comes just as the waiting ends (CPython's issue #86296), and then the call would go on.
        """
        rendering = asyncio.ensure_future(self._render(turns))
        try:
            return await asyncio.shield(rendering)
        except asyncio.CancelledError:
            self._unheard.add(rendering)
            rendering.add_done_callback(self._forget_unheard)
            raise

    async def close(self) -> None:
        """Break off what nobody waits for any more."""
        for rendering in self._unheard:
            rendering.cancel()
        await asyncio.gather(*self._unheard, return_exceptions=True)

    async def _render(self, turns: tuple[Turn, ...]) -> Any:
        from vllm.renderers.params import ChatParams

        hidden: list[str] = []
        mark = secrets.token_hex(4) if self._looks_special(turns) else None
        messages = [_message(turn, mark, hidden) for turn in turns]
        parameters = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})
        _, prompt = await self._renderer.render_messages_async(messages, parameters)
        if mark is not None:
            text = prompt.pop("prompt")
            prompt["prompt_token_ids"] = self._tokens(text, mark, hidden)
        (tokens,) = await self._renderer.tokenize_prompts_async([prompt], self._renderer.default_chat_tok_params)
        return await self._renderer.process_for_engine_async(tokens, time.time())

    def forget(self, rendered: Any) -> None:
        """Pictures of a prompt that may not have reached the engine: the next prompt brings them again."""
        cache = self._renderer.mm_processor_cache
        if cache is None or rendered is None:
            return
        hashes = list(itertools.chain.from_iterable(rendered.get("mm_hashes", {}).values()))
        # In the one thread that uses the cache, between two pictures: never while one of them looks at it.
        with contextlib.suppress(RuntimeError):  # it is shut down, and the cache gone with it
            self._renderer._mm_executor.submit(lambda: [cache.invalidate(number) for number in hashes])

    def _forget_unheard(self, rendering: "asyncio.Future[Any]") -> None:
        self._unheard.discard(rendering)
        if not rendering.cancelled() and rendering.exception() is None:
            self.forget(rendering.result())

    def text_tokens(self, text: str) -> list[int]:
        """The tokens of a text in which nothing is special."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    def end_of(self, text: str, tokens: int) -> str:
        """The text's last tokens; of a character cut in two, nothing."""
        if tokens <= 0:
            return ""
        end: str = self._tokenizer.decode(self.text_tokens(text)[-tokens:])
        return end.lstrip("\ufffd")

    def _looks_special(self, turns: tuple[Turn, ...]) -> bool:
        texts = ("".join(block for block in turn.blocks if isinstance(block, str)) for turn in turns)
        return self._special is not None and any(self._special.search(text) for text in texts)

    def _tokens(self, text: str, mark: str, hidden: list[str]) -> list[int]:
        """The template's parts with their special tokens, the hidden texts without any."""
        ids: list[int] = []
        for number, part in enumerate(re.split(f"{mark}-(\\d+)-", text)):
            if number % 2:
                ids += self._text_without_places(hidden[int(part)])
                continue
            for place, piece in enumerate(part.split(self._place) if self._place else [part]):
                ids += self._place_tokens if place else []
                ids += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=False)["input_ids"]
        return ids

    def _text_without_places(self, text: str) -> list[int]:
        """A text's tokens; those of a picture's place in it are cut otherwise, inside their first long one."""
        if not self._place or self._place not in text:
            return self.text_tokens(text)
        starts = [self._tokenizer.decode(self._place_tokens[:n]) for n in range(len(self._place_tokens) + 1)]
        cut = next((len(a) + 1 for a, b in itertools.pairwise(starts) if len(b) > len(a) + 1), 1)
        first, last = self._place[:cut], self._place[cut:]
        pieces = text.split(self._place)
        fragments = [last * (n > 0) + piece + first * (n + 1 < len(pieces)) for n, piece in enumerate(pieces)]
        return [token for fragment in fragments for token in self.text_tokens(fragment)]


def _plain_place(llm: Any, special: list[str]) -> str | None:
    """What stands for a picture in a prompt, if it is plain text."""
    from vllm.model_executor.model_loader import get_model_cls

    if not llm.vllm_config.model_config.is_multimodal_model:
        return None
    model: Any = get_model_cls(llm.vllm_config.model_config)
    place: str | None = model.get_placeholder_str("image", 1)
    return None if place is None or any(token in place for token in special) else place


def _message(turn: Turn, mark: str | None, hidden: list[str]) -> dict[str, Any]:
    """A chat message as vLLM takes it."""
    content: list[dict[str, Any]] = []
    for block in joined(turn.blocks):
        if isinstance(block, Image):
            content.append({"type": "image_pil", "image_pil": block.pixels, "uuid": block.uuid})
            continue
        if mark is not None:
            hidden.append(block)
            block = f"{mark}-{len(hidden) - 1}-"
        content.append({"type": "text", "text": block})
    return {"role": turn.role, "content": content}
