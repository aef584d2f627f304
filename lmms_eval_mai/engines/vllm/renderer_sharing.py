"""One renderer for all engines that prepare prompts alike, so that a picture is prepared once for both models of a
cascade.

It is none of those that each `AsyncLLM` has of its own: those go with their engines. ModelInput pictures are kept here
and nowhere else, and go to an engine with every prompt. vLLM's own cache, which sends a picture once and has both
processes remember that, serves one engine only, and where the first prompt was refused on its way the next one's
picture is missing (vLLM's issue #46354).
"""

import copy
import hashlib
import threading
import weakref
from typing import Any

from lmms_eval_mai.engines.vllm.renderer import Renderer

_SHARED: "weakref.WeakValueDictionary[str, Renderer]" = weakref.WeakValueDictionary()
_MAKING = threading.Lock()


def shared_renderer(vllm_config: Any, cache_gib: float) -> Renderer:
    """The renderer of an engine, shared with any other that prepares prompts alike. `cache_gib`: for prepared pictures;
    of two engines, the first one's.

    Blocks while vLLM loads tokenizer and processor."""
    from vllm.renderers import renderer_from_config

    renderer = renderer_from_config(_with_cache(vllm_config, cache_gib))
    with _MAKING:
        alike = compatibility_key(renderer)
        shared = _SHARED.get(alike) if alike else None
        if shared is not None:
            renderer.shutdown()
            return shared
        shared = Renderer(renderer)
        if alike:
            _SHARED[alike] = shared
        return shared


def _with_cache(vllm_config: Any, gib: float) -> Any:
    """A copy whose renderer keeps pictures; the engine's own configuration has no such cache."""
    model = vllm_config.model_config
    if not model.is_multimodal_model or model.is_encoder_decoder:  # vLLM keeps none for these
        return vllm_config
    changed = copy.copy(vllm_config)
    changed.model_config = copy.copy(model)
    changed.model_config.multimodal_config = copy.copy(model.multimodal_config)
    changed.model_config.multimodal_config.mm_processor_cache_gb = gib
    changed.model_config.multimodal_config.mm_processor_cache_type = "lru"  # "shm" would set memory aside for nothing
    return changed


PROMPT_IRRELEVANT_FIELDS = {
    *("hidden_size", "intermediate_size", "out_hidden_size", "depth", "num_hidden_layers", "num_attention_heads"),
    *("num_heads", "deepstack_visual_indexes", "fullatt_block_indexes", "initializer_range", "tie_word_embeddings"),
    *("dtype", "torch_dtype", "_name_or_path", "transformers_version"),
}
"""What of a model's configuration says nothing about its prompts, in its vision part too."""
OF_TEXT = ("model_type", "bos_token_id", "eos_token_id", "pad_token_id")
"""What of its text part does."""


def compatibility_key(renderer: Any) -> str | None:
    """Equal for two renderers that make the same of every chat; None where that cannot be told. Whatever is not known
    to be without effect counts."""
    from vllm.renderers.hf import resolve_chat_template

    model, tokenizer = renderer.model_config, renderer.get_tokenizer()
    if not model.is_multimodal_model or not hasattr(tokenizer, "backend_tokenizer"):
        return None
    prepares = renderer.get_mm_processor()
    processor = prepares.info.get_hf_processor()
    if not hasattr(processor, "to_dict"):
        return None
    named = {name: value for name, value in tokenizer.init_kwargs.items() if not name.endswith(("_file", "_path"))}
    template = resolve_chat_template(tokenizer, None, None, model_config=model)
    given = {name: value for name, value in vars(model.multimodal_config).items() if name != "mm_processor_cache_gb"}
    parts = repr(
        (
            *(type(renderer), type(prepares), type(prepares.info), type(processor)),
            *(tokenizer.backend_tokenizer.to_str(), named, template, processor.to_dict()),
            *(_of_prompts(model.hf_config.to_dict()), [getattr(model.hf_text_config, name, None) for name in OF_TEXT]),
            *(model.max_model_len, model.dtype, given),
        )
    )
    return None if " at 0x" in parts else hashlib.sha256(parts.encode()).hexdigest()  # an address: of this one alone


def _of_prompts(config: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration may have to do with prompts."""
    left_out = {*PROMPT_IRRELEVANT_FIELDS, "text_config", "llm_config"}
    kept = sorted((name, value) for name, value in config.items() if name not in left_out)
    return {name: _of_prompts(value) if isinstance(value, dict) else value for name, value in kept}
