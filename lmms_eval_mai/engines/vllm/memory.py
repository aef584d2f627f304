"""Decides which vLLM engines measure memory while they start, and the size of the KV cache on a CPU.

An engine on a GPU measures the free memory while it starts (vllm issue #55827). So the split is planned before the
first engine starts (`gpu_plan.py`), and two engines that measure the same GPU must not start at the same time.
"""

from typing import Any

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm.placement import Platform

Places = tuple[int, ...] | None
"""Numbers of an engine's GPUs. None: there is no GPU."""


def measures_memory(config: EngineConfig, platform: Platform) -> bool:
    """Return whether the engine measures the free memory to choose the size of its KV cache. With a given size it does
    not; on a CPU the size is always given (`cpu_kv_cache_bytes`)."""
    if "kv_cache_memory_bytes" in config.arguments:
        return not config.arguments["kv_cache_memory_bytes"]
    return platform == "cuda"


def starts_alone(
    config: EngineConfig,
    other: EngineConfig | None,
    gpus: Places,
    other_gpus: Places,
    platform: Platform,
) -> bool:
    """Return whether the two engines must start one after the other: one of them measures memory that the other engine
    allocates at the same time.

    `other` is None if there is no second engine, or if it sleeps or is of another kind. The result is then whether this
    engine measures memory.
    """
    if other is not None and not _share_a_gpu(gpus, other_gpus):
        return False
    return measures_memory(config, platform) or (other is not None and measures_memory(other, platform))


def cpu_kv_cache_bytes(model_config: Any, max_model_len: int) -> int:
    """Return the size of a KV cache for four sequences of full length, at least 64 MiB. vLLM's default is 92% of the
    memory of a NUMA node."""
    heads, size = model_config.get_total_num_kv_heads(), model_config.get_head_size()
    layers = model_config.hf_text_config.num_hidden_layers
    keys_and_values, bytes_per_number = 2, 2
    bytes_per_token: int = keys_and_values * layers * heads * size * bytes_per_number
    return max(64 << 20, 4 * bytes_per_token * max_model_len)


def _share_a_gpu(gpus: Places, other_gpus: Places) -> bool:
    """Return whether the engines have a GPU in common. None: unknown."""
    return gpus is None or other_gpus is None or bool(set(gpus) & set(other_gpus))
