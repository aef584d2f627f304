"""Turns a chat into the input of vLLM's engine, with vLLM's own chat template, tokenizer and image preparation.

One thing differs from vLLM: a part of a text that looks like a special token is not read as a special token.
`<|im_end|>` in a document, or in the small model's thinking, would end the chat message; `<|image_pad|>` would be read
as an image. If a chat contains such text, each text of the chat is replaced by a mark that no template changes. After
the template was applied, each mark is replaced by the tokens of its literal text.

In some models the placeholder of an image is ordinary text (InternVL: `<image>`). vLLM searches the prompt for the
tokens of `<image>`. If a line break follows, a tokenizer may make one token of `>` and the line break, and vLLM does
not find the placeholder. vLLM then decodes the prompt, replaces the placeholder in the text, and tokenizes the text
again, now with special tokens. To prevent this, a placeholder of the template always gets its own tokens here. The same
letters in a user's text never get these tokens.
"""

import asyncio
import itertools
import re
import secrets
import time
import weakref
from typing import Any

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.engines.special_tokens import LiteralTokenizer, special_tokens
from lmms_eval_mai.engines.vllm.internals import clear_image_cache, has_prepared_image
from lmms_eval_mai.engines.vllm.rendered_input import RenderedInput, RenderedInputs


class Renderer:
    """A renderer of vLLM. Engines that prepare prompts alike share one (`renderer_sharing.py`)."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        tokenizer = renderer.get_tokenizer()
        self._placeholder = image_placeholder(renderer.model_config, special_tokens(tokenizer))
        self.literal = LiteralTokenizer(tokenizer, [self._placeholder] if self._placeholder else [])
        self._placeholder_tokens = self.literal.tokens(self._placeholder) if self._placeholder else []
        self._inputs = RenderedInputs()
        self.users = 0
        """Engines that use this renderer."""
        # vLLM's renderer is part of reference cycles, and its images may take gigabytes until they are collected.
        weakref.finalize(self, _shut_down, renderer).atexit = False

    async def render(self, messages: tuple[Message, ...]) -> RenderedInput:
        """Return the engine's input. Raises vLLM's errors if the prompt does not fit or an image cannot be prepared."""
        return await self._inputs.get(messages, self._render)

    def has_prepared(self, uuid: str) -> bool:
        """Return whether the image is in the cache of prepared images. No chat may be in rendering."""
        return has_prepared_image(self._renderer, uuid)

    async def clear_caches(self) -> None:
        """Empty the cache of prepared images."""
        await asyncio.wrap_future(clear_image_cache(self._renderer))

    async def _render(self, messages: tuple[Message, ...]) -> Any:
        from vllm.renderers.params import ChatParams

        hidden: list[str] = []
        mark = secrets.token_hex(4) if self._looks_special(messages) else None
        chat = [_chat_message(message, mark, hidden) for message in messages]
        parameters = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})
        _, prompt = await self._renderer.render_messages_async(chat, parameters)
        if mark is not None:
            prompt["prompt_token_ids"] = self._replace_marks(prompt.pop("prompt"), mark, hidden)
        (tokens,) = await self._renderer.tokenize_prompts_async([prompt], self._renderer.default_chat_tok_params)
        return await self._renderer.process_for_engine_async(tokens, time.time(), skip_mm_cache=True)

    def _looks_special(self, messages: tuple[Message, ...]) -> bool:
        texts = ("".join(part for part in message.content if isinstance(part, str)) for message in messages)
        return any(map(self.literal.looks_special, texts))

    def _replace_marks(self, text: str, mark: str, hidden: list[str]) -> list[int]:
        """Return the tokens of the template's text, with the literal tokens of a hidden text at each mark."""
        ids: list[int] = []
        parts = re.split(f"{mark}-(\\d+)-", text)  # template texts and numbers of hidden texts alternate
        for template_text, number in itertools.zip_longest(parts[::2], parts[1::2]):
            ids += self._template_tokens(template_text)
            if number is not None:
                ids += self._literal_tokens(hidden[int(number)])
        return ids

    def _template_tokens(self, text: str) -> list[int]:
        """Return the tokens of text of the template. Special tokens and placeholders keep their meaning."""
        first, *others = text.split(self._placeholder) if self._placeholder else [text]
        ids = self.literal.tokens(first, special=True)
        for other in others:
            ids += self._placeholder_tokens + self.literal.tokens(other, special=True)
        return ids

    def _literal_tokens(self, text: str) -> list[int]:
        """Return the tokens of a user's text, in which nothing is special.

        If the text has the letters of the placeholder, they are cut in two parts that are tokenized separately, so they
        get other tokens than the template's placeholder.
        """
        if not self._placeholder or self._placeholder not in text:
            return self.literal.tokens(text)
        cut = self._cut_position()
        head, tail = self._placeholder[:cut], self._placeholder[cut:]
        first, *others = text.split(self._placeholder)
        fragments = [first]
        for other in others:
            fragments[-1] += head
            fragments.append(tail + other)
        return [token for fragment in fragments for token in self.literal.tokens(fragment)]

    def _cut_position(self) -> int:
        """Return the position at which to cut the placeholder: after the first character of its first token that has
        more than one character."""
        tokens = self._placeholder_tokens
        lengths = [len(self.literal.text(tokens[:count])) for count in range(len(tokens) + 1)]
        return next((start + 1 for start, end in itertools.pairwise(lengths) if end > start + 1), 1)


def _shut_down(renderer: Any) -> None:
    clear_image_cache(renderer)
    renderer.shutdown()


def image_placeholder(model_config: Any, special: list[str]) -> str | None:
    """Return the text that stands for an image in a prompt. None: it is a special token, or there is none."""
    from vllm.model_executor.model_loader import get_model_cls

    model: Any = get_model_cls(model_config)
    placeholder: str | None = model.get_placeholder_str("image", 1)
    return None if placeholder is None or any(token in placeholder for token in special) else placeholder


def _chat_message(message: Message, mark: str | None, hidden: list[str]) -> dict[str, Any]:
    """Return the message in vLLM's format. With a mark, append its texts to `hidden` and put marks in their place."""
    content: list[dict[str, Any]] = []
    for part in merge_adjacent_text(message.content):
        if isinstance(part, Image):
            content.append({"type": "image_pil", "image_pil": part.pixels, "uuid": part.uuid})
            continue
        if mark is not None:
            hidden.append(part)
            part = f"{mark}-{len(hidden) - 1}-"
        content.append({"type": "text", "text": part})
    return {"role": message.role, "content": content}
