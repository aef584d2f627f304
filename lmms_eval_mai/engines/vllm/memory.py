"""How much memory a vLLM engine takes, if two engines share one machine. Arguments that the user gives always win.

An engine on a GPU measures the free memory while it starts (vllm issue #55827). So the split is decided before the
first engine starts, and two engines that measure the same GPU must not start at the same time.
"""

from typing import Any

from loguru import logger

from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.engines.checkpoints import weight_bytes
from lmms_eval_mai.engines.vllm.placement import Platform
from lmms_eval_mai.errors import ArgumentError

GPU_SHARE = 0.90
"""Share of a GPU's memory that all engines on it take together."""
GIB = 1 << 30
MIN_KV_CACHES_GIB = 2
"""Space for the KV caches of two engines that share a GPU."""


def measures_memory(config: EngineConfig, platform: Platform) -> bool:
    """Return whether the engine measures the free memory to choose the size of its KV cache. With a given size it does
    not; on a CPU the size is always given (`cpu_kv_cache_bytes`)."""
    if "kv_cache_memory_bytes" in config.arguments:
        return not config.arguments["kv_cache_memory_bytes"]
    return platform == "cuda"


def starts_alone(
    config: EngineConfig,
    other: EngineConfig | None,
    gpus: list[str] | None,
    other_gpus: list[str] | None,
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


def total_gpu_bytes(gpus: list[str] | None) -> int:
    """Return the memory of the engine's first GPU in bytes. vLLM asks NVML; torch would open a CUDA context here."""
    from vllm.platforms import current_platform

    total: int = current_platform.get_device_total_memory(int(gpus[0]) if gpus else 0)
    return total


def gpu_share(
    config: EngineConfig,
    other: EngineConfig | None,
    gpus: list[str] | None,
    other_gpus: list[str] | None,
    total_bytes: int,
) -> float:
    """Return the share of its GPU's memory for the engine.

    Alone on its GPU: `GPU_SHARE`. With a second engine whose share the user sets: the rest of `GPU_SHARE`. Otherwise:
    the engine's weights and half of the space that the weights of both engines leave. Raises `ArgumentError` if the two
    engines do not fit the GPU.
    """
    if other is None or not _share_a_gpu(gpus, other_gpus):
        return GPU_SHARE
    if "gpu_memory_utilization" in other.arguments:
        return _rest_of_share(config, other)
    own_bytes, other_bytes = _bytes_per_gpu(config, gpus), _bytes_per_gpu(other, other_gpus)
    if own_bytes is None or other_bytes is None:
        logger.warning(
            f"mai_cascade: the size of {config.model if own_bytes is None else other.model} is unknown, so both "
            "engines get the same share of the GPU's memory. Set small_gpu_memory_utilization and "
            "large_gpu_memory_utilization to change that."
        )
        return GPU_SHARE / 2
    left = GPU_SHARE * total_bytes - own_bytes - other_bytes
    if left < MIN_KV_CACHES_GIB * GIB:
        raise ArgumentError(
            f"{config.model} ({own_bytes / GIB:.1f} GiB) and {other.model} ({other_bytes / GIB:.1f} GiB) do not fit "
            f"this GPU together. They may take {GPU_SHARE:.0%} of its {total_bytes / GIB:.1f} GiB; with "
            f"{MIN_KV_CACHES_GIB} GiB for KV caches they are {MIN_KV_CACHES_GIB - left / GIB:.1f} GiB short. Give each "
            "its own GPU (small_devices=0,large_devices=1), let them take turns (sleep=true), or use smaller models."
        )
    return (own_bytes + left / 2) / total_bytes


def _rest_of_share(config: EngineConfig, other: EngineConfig) -> float:
    """Return the share of the GPU's memory that the other engine leaves. Raises `ArgumentError` if it leaves none."""
    others_share = other.arguments["gpu_memory_utilization"]
    rest = GPU_SHARE - float(others_share)
    if rest <= 0:
        raise ArgumentError(
            f"{other.side}_gpu_memory_utilization={others_share} leaves no GPU memory for "
            f"{config.side}={config.model}: two engines on one GPU may together take {GPU_SHARE:g} of its memory. "
            f"Lower {other.side}_gpu_memory_utilization, or also set {config.side}_gpu_memory_utilization."
        )
    return rest


def _share_a_gpu(gpus: list[str] | None, other_gpus: list[str] | None) -> bool:
    """Return whether the engines may have a GPU in common. None: vLLM chooses."""
    return gpus is None or other_gpus is None or bool(set(gpus) & set(other_gpus))


def _bytes_per_gpu(config: EngineConfig, gpus: list[str] | None) -> float | None:
    size = weight_bytes(config.model)
    count = int(config.arguments.get("tensor_parallel_size") or len(gpus or [0]))
    return None if size is None else size / count
