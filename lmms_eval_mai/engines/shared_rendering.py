"""One renderer for all engines that prepare prompts alike, so that a picture is prepared once for both models of a
cascade.

It is none of those that each `AsyncLLM` has of its own: those go with their engines. Prepared pictures are kept here
and nowhere else, and go to an engine with every prompt. vLLM's own cache, which sends a picture once and has both
processes remember that, serves one engine only, and where the first prompt was refused on its way the next one's
picture is missing (vLLM's issue #46354).
"""

import copy
import hashlib
import threading
import weakref
from typing import Any

from lmms_eval_mai.engines.rendering import Renderer

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
