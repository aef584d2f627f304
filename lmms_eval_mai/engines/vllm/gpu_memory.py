"""Decides on which GPUs the two models run, and how they share the memory of one GPU.

With two or more GPUs each model has its own, and vLLM's own choices stay. On one GPU they share vLLM's default part of
the memory in proportion to their weights. vLLM measures what is left of a share for the KV cache, and chooses the
longest context that fits. While it measures, no other engine may start (vLLM issue #55827).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import SIDES, EngineConfig, Side
from lmms_eval_mai.engines.checkpoints import weight_bytes
from lmms_eval_mai.engines.vllm.environment import worker_count
from lmms_eval_mai.errors import ArgumentError

GIB = 1 << 30
USABLE = 0.92
"""Part of a GPU's memory that the engines on it take together: vLLM's default of `gpu_memory_utilization`. The rest is
for CUDA contexts (0.6 GiB for each engine)."""
BESIDES_WEIGHTS = 4 * GIB
"""Bytes that an engine needs at least besides its weights: for images, buffers, CUDA graphs and a short KV cache. On an
H100, 3.5 GiB were measured for the shape of Qwen3-VL-2B and 4.4 for that of 8B. It balances the shares."""
FP8_PART = 0.6
"""Part of bf16 weights that `quantization=fp8` needs, about: embeddings and the last layer stay in bf16."""
WEIGHTS_GIB = {
    "Qwen/Qwen3-VL-2B-Instruct": 4.0,
    "Qwen/Qwen3-VL-4B-Instruct": 8.3,
    "Qwen/Qwen3-VL-8B-Instruct": 16.3,
    "OpenGVLab/InternVL3_5-1B-HF": 2.0,
    "OpenGVLab/InternVL3_5-2B-HF": 4.4,
    "OpenGVLab/InternVL3_5-4B-HF": 8.8,
    "OpenGVLab/InternVL3_5-8B-HF": 15.9,
    "OpenGVLab/InternVL3_5-14B-HF": 28.2,
    "Qwen/Qwen3.5-2B": 4,
    "Qwen/Qwen3.5-4B": 8,
    "Qwen/Qwen3.5-9B": 17,
    "Qwen/Qwen3.5-27B": 50,
    "google/gemma-4-E2B-it": 10,
    "google/gemma-4-31B-it": 58,
}
"""The weights of the models of the named pairs, for a machine that neither has them nor reaches the hub: from the hub
(2026-11-23, bf16); whole numbers are computed from the names."""


@dataclass(frozen=True)
class GpuShare:
    """What one engine gets."""

    gpus: tuple[int, ...]
    weight_bytes: int | None
    """Of the whole model, in the memory. None: unknown."""
    utilization: float | None = None
    """vLLM's `gpu_memory_utilization`, if the engine shares its GPU. None: it has its GPUs for itself."""


def shares(pair: Sequence[EngineConfig], gpu_count: int, rank: int | None = None) -> dict[Side, GpuShare]:
    """Return what each engine gets. `rank`: of this process among those of a launcher. Raises `ArgumentError`."""
    gpus: dict[Side, tuple[int, ...]] = {}
    for config in sorted(pair, key=lambda config: _named_gpus(config) is None):  # those that the user places come first
        gpus[config.side] = _gpus(config, set(itertools.chain(*gpus.values())), gpu_count, rank)
    sizes = {config.side: _weight_bytes(config) for config in pair}
    is_shared = len(pair) == 2 and not set(gpus["small"]).isdisjoint(gpus["large"])
    utilizations = _utilizations(pair, sizes) if is_shared else {}
    return {side: GpuShare(gpus[side], sizes[side], utilizations.get(side)) for side in gpus}


def least_gib(part: float, *models: str) -> float | None:
    """Return the memory of a GPU, in GiB, that the models of a named pair need together. None: not known. `part`: of
    their bf16 weights."""
    known = [WEIGHTS_GIB[model] for model in models if model in WEIGHTS_GIB]
    return sum(part * size + BESIDES_WEIGHTS / GIB for size in known) / USABLE if len(known) == len(models) else None


def _weight_bytes(config: EngineConfig) -> int | None:
    """Return the size of a model's weights in the memory. None: unknown."""
    stored = weight_bytes(config.model, config.arguments.get("revision"))
    known = stored or int(WEIGHTS_GIB.get(config.model, 0) * GIB) or None
    is_quantized = str(config.arguments.get("quantization")).startswith("fp8") and "fp8" not in config.model.lower()
    return int(known * FP8_PART) if known and is_quantized else known


def _utilizations(pair: Sequence[EngineConfig], sizes: Mapping[Side, int | None]) -> dict[Side, float]:
    """Return the parts of one GPU's memory that both engines get. A part that the user gives is kept."""
    arguments = {config.side: config.arguments for config in pair}
    given: dict[Side, Any] = {side: arguments[side].get("gpu_memory_utilization") for side in SIDES}
    small, large = given.values()
    if small is None and large is None:
        needs = [BESIDES_WEIGHTS + size for side in SIDES if (size := sizes[side]) is not None]
        small = USABLE * (needs[0] / sum(needs) if len(needs) == 2 else 0.5)
    if small is None:
        small = USABLE - large
    elif large is None:
        large = USABLE - small
    if min(small, large) <= 0 or small + large > 1:
        shown = " and ".join(
            f"{side}_gpu_memory_utilization={part}" for side, part in given.items() if part is not None
        )
        raise ArgumentError(
            f"Both engines share a GPU, and {shown} leaves too little of it. Give at most 1 to both together, or less "
            f"than {USABLE} to one of them: the other gets the rest of {USABLE}."
        )
    return {"small": round(small, 4), "large": round(large, 4)}


def _gpus(config: EngineConfig, taken: set[int], gpu_count: int, rank: int | None) -> tuple[int, ...]:
    """Return the GPUs of an engine: those that the user names; the one of its rank; GPUs that no engine has; else the
    first ones, which it shares."""
    needed, named = worker_count(config), _named_gpus(config)
    free = [gpu for gpu in range(gpu_count) if gpu not in taken]
    if named is not None:
        available = named
    elif rank is not None:
        available = (rank % max(1, gpu_count),)  # a launcher may let each rank see its own GPU only
    else:
        available = tuple(free if len(free) >= needed else range(gpu_count))[:needed]
    if needed > len(available) or max(available) >= gpu_count:
        raise ArgumentError(
            f"The {config.side} engine needs {needed} GPU{'s' * (needed > 1)} and would get "
            f"{', '.join(map(str, available)) or 'none'}; this process can use {gpu_count}, numbered from 0. Change "
            f"{config.side}_devices, or lower tensor_parallel_size, pipeline_parallel_size or data_parallel_size."
        )
    return available


def _named_gpus(config: EngineConfig) -> tuple[int, ...] | None:
    """Return the GPUs that the user names: `small_devices=0` or `large_devices=[1,2]`; `device_ids` is vLLM's own name
    for it. Raises `ArgumentError`."""
    given = config.arguments.get("devices", config.arguments.get("device_ids"))
    if given is None:
        return None
    # lmms-eval would split 0,1 at its comma, so 0;1 and 0+1 are accepted too.
    parts = given if isinstance(given, list) else str(given).replace(";", ",").replace("+", ",").split(",")
    if not all(str(part).strip().isdigit() for part in parts):
        raise ArgumentError(
            f"{config.side}_devices={given} is not a list of GPU numbers: write {config.side}_devices=[0,1]."
        )
    return tuple(int(str(part)) for part in parts)
