"""A chat as vLLM's engine takes it. Template, tokens and images are vLLM's own, but for one thing: text that looks like
a special token stays text.

`<|im_end|>` in a document, or in the small model's thinking, would end the turn; `<|image_pad|>` would be taken for a
picture. So in a chat that holds such text, every text is first hidden behind a mark that no template touches, and put
in its place as tokens of plain text.

Engines that prepare prompts alike share one renderer, apart from the one that each `AsyncLLM` has of its own: so a
picture is prepared once for both models of a cascade. It is kept here and nowhere else, and goes to an engine with
every prompt; vLLM's own cache, which sends it once and has both processes remember that, serves one engine only, and
forgets to send it again where the first prompt was refused on its way (vLLM's issue #46354).

Some models' place for a picture is plain text itself (InternVL's `<image>`). vLLM looks for its tokens, and where they
are not found, since `>` and a line break are one token, it replaces in the decoded text and reads that anew, special
tokens and all. So its tokens are kept apart in the template, and are never those of the same letters in a text.
"""

import asyncio
import copy
import hashlib
import itertools
import re
import secrets
import threading
import time
import weakref
from typing import Any

from lmms_eval_mai.engines.base import Image, Turn
from lmms_eval_mai.engines.chat import joined


class Renderer:
    """vLLM's renderer of one kind of prompts."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        tokenizer = renderer.get_tokenizer()
        # A copy: reading special tokens as text is a state of the tokenizer, which vLLM uses in threads of its own.
        self._tokenizer = copy.deepcopy(tokenizer)
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._place = _plain_place(renderer.model_config, special)
        self._place_tokens = self.text_tokens(self._place) if self._place else []
        marked = [*special, *([self._place] if self._place else [])]
        self._special = re.compile("|".join(map(re.escape, marked))) if marked else None

    async def render(self, turns: tuple[Turn, ...]) -> Any:
        """The engine's input. Raises what vLLM raises for prompts that do not fit and pictures it cannot take.

        vLLM waits with `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that comes just as the
        waiting ends (CPython's issue #86296): so this does not wait for the end of a cancelled rendering.
        """
        rendering = asyncio.ensure_future(self._render(turns))
        try:
            return await asyncio.shield(rendering)
        except asyncio.CancelledError:
            rendering.cancel()
            raise

    async def forget(self) -> None:
        """Empty the cache of pictures. In the one thread that uses it, between two of them."""
        if cache := self._renderer._mm_processor_only_cache:
            await asyncio.wrap_future(self._renderer._mm_executor.submit(cache.clear_cache))

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
        return await self._renderer.process_for_engine_async(tokens, time.time(), skip_mm_cache=True)

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


_SHARED: "weakref.WeakValueDictionary[str, Renderer]" = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def renderer_for(vllm_config: Any, cache_gib: float) -> Renderer:
    """The renderer of an engine, shared with any other that prepares prompts alike. `cache_gib`: for prepared pictures.

    Blocks while vLLM loads tokenizer and processor."""
    from vllm.renderers import renderer_from_config

    renderer = renderer_from_config(_with_cache(vllm_config, cache_gib))
    with _MAKING:
        alike = _likeness(renderer)
        shared = _SHARED.get(alike) if alike else None
        if shared is None:
            shared = Renderer(renderer)
            if alike:
                _SHARED[alike] = shared
    return shared


def _with_cache(vllm_config: Any, gib: float) -> Any:
    """A copy whose renderer keeps pictures; the engine's own configuration has no such cache."""
    changed = copy.copy(vllm_config)
    if vllm_config.model_config.is_multimodal_model:
        changed.model_config = copy.copy(vllm_config.model_config)
        changed.model_config.multimodal_config = copy.copy(vllm_config.model_config.multimodal_config)
        changed.model_config.multimodal_config.mm_processor_cache_gb = gib
    return changed


SIZES = {
    *("hidden_size", "intermediate_size", "out_hidden_size", "depth", "num_hidden_layers", "num_attention_heads"),
    *("num_heads", "deepstack_visual_indexes", "fullatt_block_indexes", "initializer_range", "tie_word_embeddings"),
    *("text_config", "llm_config", "dtype", "torch_dtype", "_name_or_path", "transformers_version"),
}
"""What of a model's configuration says nothing about its prompts, in its vision part too."""


def _likeness(renderer: Any) -> str | None:
    """Equal for two renderers that make the same of every chat; None where that cannot be told. Whatever is not known
    to be without effect counts."""
    model, tokenizer = renderer.model_config, renderer.get_tokenizer()
    if not model.is_multimodal_model or not hasattr(tokenizer, "backend_tokenizer"):
        return None
    processor = renderer.get_mm_processor().info.get_hf_processor()
    if not hasattr(processor, "to_dict"):
        return None
    named = {name: value for name, value in tokenizer.init_kwargs.items() if not name.endswith(("_file", "_path"))}
    config = _without_sizes(model.hf_config.to_dict())
    given = {name: value for name, value in vars(model.multimodal_config).items() if name != "mm_processor_cache_gb"}
    arguments = (model.max_model_len, model.dtype, given)
    parts = (
        *(type(tokenizer), tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, named),
        *(type(processor), processor.to_dict(), getattr(processor, "chat_template", None)),
        *(config, arguments),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _without_sizes(config: dict[str, Any]) -> dict[str, Any]:
    kept = sorted((name, value) for name, value in config.items() if name not in SIZES)
    return {name: _without_sizes(value) if isinstance(value, dict) else value for name, value in kept}


def _plain_place(model_config: Any, special: list[str]) -> str | None:
    """What stands for a picture in a prompt, if it is plain text."""
    from vllm.model_executor.model_loader import get_model_cls

    if not model_config.is_multimodal_model:
        return None
    model: Any = get_model_cls(model_config)
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
