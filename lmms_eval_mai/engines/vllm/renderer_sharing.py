"""Shares one renderer between all engines that prepare prompts alike, so that an image is prepared once for both models
of a pair.

Each `AsyncLLM` has a renderer of its own. That renderer is not used here, because it is closed with its engine. Only
the shared renderer keeps prepared images. It sends an image to an engine with every prompt. vLLM has another cache,
which sends an image to an engine once and keeps it in both processes. That cache serves one engine only, and after a
refused prompt the next prompt with the same image fails (vLLM issue #46354).
"""

import copy
import hashlib
import re
import threading
import weakref
from typing import Any

from lmms_eval_mai.engines.vllm.renderer import Renderer
from lmms_eval_mai.engines.vllm.renderer_processes import RendererProcesses

_renderers: "weakref.WeakValueDictionary[str, Renderer]" = weakref.WeakValueDictionary()
"""Compatibility key -> renderer."""
_lock = threading.Lock()


def shared_renderer(vllm_config: Any, image_cache_gib: float, processes: int = 1) -> Renderer:
    """Return a renderer for an engine; engines that prepare prompts alike get the same one. Blocks while vLLM loads
    tokenizer and processor.

    `image_cache_gib`: size of the cache of prepared images, of all processes together. `processes`: number of processes
    that render; 1: this process. If two engines share a renderer, the first one decides.

    Each engine must `release` its renderer.
    """
    from vllm.renderers import renderer_from_config

    changed = with_image_cache(vllm_config, image_cache_gib / processes)
    renderer = renderer_from_config(changed)
    with _lock:
        key = compatibility_key(renderer)
        shared = _renderers.get(key) if key else None
        if shared is not None:
            renderer.shutdown()
            shared.users += 1
            return shared
        shared = Renderer(renderer) if processes == 1 else RendererProcesses(renderer, changed, processes)
        if key:
            _renderers[key] = shared
        shared.users += 1
        return shared


def release(renderer: Renderer) -> None:
    """End the use of a renderer by one engine. Blocks until the processes of a renderer without users have ended. The
    renderer itself may live longer, because the errors of failed samples keep it."""
    with _lock:
        renderer.users -= 1
        if renderer.users or not isinstance(renderer, RendererProcesses):
            return
        for key in [key for key, one in _renderers.items() if one is renderer]:
            del _renderers[key]
    renderer.close()


def with_image_cache(vllm_config: Any, gib: float) -> Any:
    """Return a copy with an image cache for the renderer. The engine's own configuration has no such cache."""
    model = vllm_config.model_config
    if model.is_encoder_decoder:  # vLLM caches no images for these
        return vllm_config
    changed = copy.copy(vllm_config)
    changed.model_config = copy.copy(model)
    changed.model_config.multimodal_config = copy.copy(model.multimodal_config)
    changed.model_config.multimodal_config.mm_processor_cache_gb = gib
    changed.model_config.multimodal_config.mm_processor_cache_type = "lru"  # "shm" would reserve unused memory
    return changed


PROMPT_IRRELEVANT_FIELDS = {
    *("hidden_size", "intermediate_size", "out_hidden_size", "depth", "num_hidden_layers", "num_attention_heads"),
    *("num_heads", "deepstack_visual_indexes", "fullatt_block_indexes", "initializer_range", "tie_word_embeddings"),
    *("dtype", "torch_dtype", "_name_or_path", "transformers_version"),
}
"""Fields of a model's configuration, and of its vision part, that do not change prompts. Unknown fields are assumed to
matter."""
TEXT_PARTS = {"text_config", "llm_config"}
TEXT_FIELDS = ("model_type", "bos_token_id", "eos_token_id", "pad_token_id")
"""Fields of the text part that may change prompts."""

_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def compatibility_key(renderer: Any) -> str | None:
    """Return a text that is equal for two renderers that turn every chat into the same input. None: such a comparison
    is not possible."""
    from vllm.renderers.hf import resolve_chat_template

    model, tokenizer = renderer.model_config, renderer.get_tokenizer()
    image_processor = renderer.get_mm_processor()
    hf_processor = image_processor.info.get_hf_processor()
    if not hasattr(tokenizer, "backend_tokenizer") or not hasattr(hf_processor, "to_dict"):
        return None
    fields = {
        "classes": [type(one) for one in (renderer, image_processor, image_processor.info, hf_processor)],
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "tokenizer arguments": _without(tokenizer.init_kwargs, suffixes=("_file", "_path")),
        "chat template": resolve_chat_template(tokenizer, None, None, model_config=model),
        "processor": hf_processor.to_dict(),
        "model": _prompt_fields(model.hf_config.to_dict()),
        "text model": [getattr(model.hf_text_config, name, None) for name in TEXT_FIELDS],
        "context and dtype": (model.max_model_len, model.dtype),
        "image arguments": _without(vars(model.multimodal_config), suffixes=("mm_processor_cache_gb",)),
    }
    text = repr(fields)
    # The `repr` of some objects is only their memory address. Their content is then unknown.
    return None if _MEMORY_ADDRESS.search(text) else hashlib.sha256(text.encode()).hexdigest()


def _without(fields: dict[str, Any], suffixes: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not name.endswith(suffixes)}


def _prompt_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's configuration that may change prompts, in the order of their names."""
    left_out = PROMPT_IRRELEVANT_FIELDS | TEXT_PARTS
    kept = sorted((name, value) for name, value in config.items() if name not in left_out)
    return {name: _prompt_fields(value) if isinstance(value, dict) else value for name, value in kept}
