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
import copy
import hashlib
import itertools
import re
import secrets
import threading
import weakref
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import EngineConfig, Image, Message
from lmms_eval_mai.engines.checkpoints import local_folder
from lmms_eval_mai.engines.messages import LiteralTokenizer, merge_adjacent_text, special_tokens
from lmms_eval_mai.engines.vllm.internals import image_placeholder


class Renderer:
    """A renderer of vLLM. Engines that prepare prompts alike share one, so that an image is prepared once for both
    models of a pair.

    Each `AsyncLLM` has a renderer of its own. It is not used here, because it is closed with its engine.
    """

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        tokenizer = renderer.get_tokenizer()
        self._placeholder = image_placeholder(renderer.model_config, special_tokens(tokenizer))
        self.literal = LiteralTokenizer(tokenizer, [self._placeholder] if self._placeholder else [])
        self._placeholder_tokens = self.literal.tokens(self._placeholder) if self._placeholder else []
        self._inside_placeholder = self._cut_of_placeholder()
        # vLLM's renderer is part of reference cycles, and its images may take gigabytes until they are collected.
        weakref.finalize(self, _shut_down, renderer).atexit = False

    async def clear_caches(self) -> None:
        """Empty the cache of prepared images."""
        await self._renderer.clear_mm_cache_async()

    async def render(self, messages: tuple[Message, ...]) -> Any:
        """Return the engine's input. Raises vLLM's errors if the prompt does not fit or an image cannot be prepared."""
        from vllm.renderers.params import ChatParams

        parameters = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})
        texts = ("".join(part for part in message.content if isinstance(part, str)) for message in messages)
        if not any(map(self.literal.looks_special, texts)):
            chat = [_chat_message(message, None, []) for message in messages]
            _, (engine_input,) = await self._renderer.render_chat_async([chat], parameters)
            return engine_input
        hidden: list[str] = []
        mark = secrets.token_hex(4)
        chat = [_chat_message(message, mark, hidden) for message in messages]
        _, prompt = await self._renderer.render_messages_async(chat, parameters)
        tok_params = self._renderer.default_chat_tok_params
        # vLLM refuses a text that is much too long before it tokenizes it.
        tok_params.apply_pre_tokenization(self._renderer.tokenizer, {"prompt": "".join([prompt["prompt"], *hidden])})
        text = prompt.pop("prompt")
        prompt["prompt_token_ids"] = await asyncio.to_thread(self._replace_marks, text, mark, hidden)
        (engine_input,) = await self._renderer.render_cmpl_async([prompt], tok_params)
        return engine_input

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
        fragments = [text] if self._inside_placeholder is None else self._inside_placeholder.split(text)
        return [token for fragment in fragments for token in self.literal.tokens(fragment)]

    def _cut_of_placeholder(self) -> re.Pattern[str] | None:
        """Return a pattern of the position at which a user's placeholder is cut: after the first character of its first
        token that has more than one character."""
        if not self._placeholder:
            return None
        tokens = self._placeholder_tokens
        lengths = [len(self.literal.text(tokens[:count])) for count in range(len(tokens) + 1)]
        cut = next((start + 1 for start, end in itertools.pairwise(lengths) if end > start + 1), 1)
        return re.compile(f"(?<={re.escape(self._placeholder[:cut])})(?={re.escape(self._placeholder[cut:])})")


def _shut_down(renderer: Any) -> None:
    renderer.clear_mm_cache()
    renderer.shutdown()


_renderers: "weakref.WeakValueDictionary[str, Renderer]" = weakref.WeakValueDictionary()
"""What decides how prompts are prepared -> renderer."""
_lock = threading.Lock()

PREPARATION_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.json", "chat_template.jinja", "processor_config.json"),
    *("preprocessor_config.json", "video_preprocessor_config.json"),
)
"""The files of a checkpoint that decide how text and images are prepared."""
ENGINE_ARGUMENTS = ("tokenizer", "tokenizer_mode", "trust_remote_code", "hf_overrides", "model_impl")


def shared_renderer(vllm_config: Any, config: EngineConfig, image_cache_gib: float) -> Renderer:
    """Return a renderer for an engine; engines that prepare prompts alike get the same one. Blocks while vLLM loads
    tokenizer and processor. `image_cache_gib`: size of the cache of prepared images."""
    from vllm.renderers import renderer_from_config

    with _lock:
        key = _preparation(vllm_config.model_config, config)
        found = _renderers.get(key)
        if found is None:
            found = Renderer(renderer_from_config(with_image_cache(vllm_config, image_cache_gib)))
            _renderers[key] = found
        return found


def _preparation(model_config: Any, config: EngineConfig) -> str:
    """Return a text that is equal for two engines that turn every chat into the same input: they have the same files
    for text and images, the same kind of model, and the same arguments."""
    folder = local_folder(config.model, config.arguments.get("revision"))
    vision = getattr(model_config.hf_config, "vision_config", None)
    fields = [
        model_config.architectures,
        [(name, _digest(folder, name)) for name in PREPARATION_FILES] if folder else config.model,
        [getattr(vision, name, None) for name in ("patch_size", "spatial_merge_size", "temporal_patch_size")],
        [getattr(model_config.hf_config, name, None) for name in ("image_token_id", "downsample_ratio")],
        [model_config.max_model_len, str(model_config.dtype)],
        [str(config.arguments.get(name)) for name in ENGINE_ARGUMENTS],
        [(name, str(value)) for name, value in sorted(config.arguments.items()) if "mm_" in name],
    ]
    return repr(fields)


def _digest(folder: Path, name: str) -> str | None:
    file = folder / name
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() if file.is_file() else None


def with_image_cache(vllm_config: Any, gib: float) -> Any:
    """Return a copy for a renderer that keeps prepared images and sends them whole with every prompt. The engine's own
    configuration has no such cache.

    vLLM has another cache, which sends an image to an engine once and keeps it in both processes. It serves one engine
    only. vLLM chooses the cache that is wanted here if the engine has replicas.
    """
    model = vllm_config.model_config
    if model.is_encoder_decoder:  # vLLM caches no images for these
        return vllm_config
    changed = copy.copy(vllm_config)
    changed.model_config = copy.copy(model)
    changed.model_config.multimodal_config = copy.copy(model.multimodal_config)
    changed.model_config.multimodal_config.mm_processor_cache_gb = gib
    changed.parallel_config = copy.copy(vllm_config.parallel_config)
    changed.parallel_config.data_parallel_size = 2
    changed.parallel_config.data_parallel_external_lb = False
    return changed


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
