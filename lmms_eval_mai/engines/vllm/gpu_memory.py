"""Decides on which GPUs the two models run, and how they share the memory of one GPU.

With two or more GPUs each model has its own, and vLLM's own choices stay. On one GPU they share vLLM's default part of
the memory in proportion to their weights, and vLLM chooses the longest context that fits.

An engine that measures the free memory must start alone (vLLM issue #55827). So on a shared GPU each gets the size of
its KV cache, which is computed here, and both start at the same time. Where too little is left for that, or a weight is
not known, vLLM measures, and the engines start one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
FIXED = (1.4, 0.017)
"""The CUDA context and the CUDA graphs of an engine need 1.4 GiB + 0.017 GiB for each GiB of weights. From the two
engines on the H100 (vLLM 0.32, no compilation; 2026-11-26)."""
PEAK, MEASURED_BATCH = (1.8, 0.05), 16_384
"""A batch of 16,384 tokens needs 1.8 GiB + 0.05 GiB for each GiB of weights while it is computed. From the same two."""
MARGIN = 1.5
"""Factor on FIXED and PEAK. With vLLM's default compilation on an H200, after 256 questions at a time, the two engines
together held 1.5 times as much (3.9 and 7.7 GiB), unused memory of PyTorch included (2026-11-27)."""
LARGEST_SHARES = 0.95
"""Both engines start at the same time if their shares together are at most this large. vLLM refuses to start if less
memory is free than its share, and the other engine may have taken its own already."""
LEAST_KV_TOKENS = 65_536
"""A computed KV cache holds at least this many tokens, or the model's context: a smaller one would limit the context,
which vLLM fits to it."""


CHANGE_SIZE = ("quantization", "speculative_config", "enable_lora", "cpu_offload_gb")
"""Arguments with which a model is not as large as its checkpoint, so vLLM measures the memory."""


@dataclass(frozen=True)
class GpuShare:
    """What one engine gets."""

    gpus: tuple[int, ...]
    """Numbers of its GPUs."""
    weight_bytes: int | None
    """Size of the whole model. None: unknown."""
    utilization: float | None = None
    """vLLM's `gpu_memory_utilization`, if the engine shares its GPU. None: it has its GPUs for itself."""


def shares(pair: Sequence[EngineConfig], gpu_count: int, rank: int | None = None) -> dict[Side, GpuShare]:
    """Return what each engine gets. `rank`: of this process among those of a launcher. Raises `ArgumentError`."""
    gpu_shares: dict[Side, GpuShare] = {}
    for config in sorted(pair, key=lambda config: _named_gpus(config) is None):  # those that the user places come first
        taken = {gpu for share in gpu_shares.values() for gpu in share.gpus}
        size = weight_bytes(config.model, config.arguments.get("revision"))
        gpu_shares[config.side] = GpuShare(_gpus(config, taken, gpu_count, rank), size)
    if len(pair) < 2 or not set(gpu_shares["small"].gpus) & set(gpu_shares["large"].gpus):
        return gpu_shares
    needs = {side: BESIDES_WEIGHTS + (share.weight_bytes or 0) for side, share in gpu_shares.items()}
    if any(share.weight_bytes is None for share in gpu_shares.values()):
        needs = dict.fromkeys(needs, 1)
    for config, other in (pair, pair[::-1]):
        share, given = (one.arguments.get("gpu_memory_utilization") for one in (config, other))
        if share is None and given is not None and given >= USABLE:
            raise ArgumentError(
                f"{other.side}_gpu_memory_utilization={given:g} leaves no GPU memory to the {config.side} engine. "
                "Lower it."
            )
        if share is None:
            share = USABLE - given if given else USABLE * needs[config.side] / sum(needs.values())
        gpu_shares[config.side] = replace(gpu_shares[config.side], utilization=round(share, 4))
    small, large = (gpu_shares[side].utilization or 0 for side in SIDES)
    if small + large > 1:
        raise ArgumentError(
            f"gpu_memory_utilization={small:g} of the small engine and {large:g} of the large one are more than the "
            "GPU that both share. Lower them."
        )
    return gpu_shares


def kv_cache_bytes(config: EngineConfig, memory: float, share: GpuShare, batched_tokens: int) -> int | None:
    """Return the bytes that a share leaves for the KV cache. None: not known. `memory`: of the GPU, in bytes.
    `batched_tokens`: the most tokens of a batch."""
    changes_size = any(config.arguments.get(name) for name in CHANGE_SIZE)
    if share.utilization is None or share.weight_bytes is None or len(share.gpus) > 1 or changes_size:
        return None
    weights = share.weight_bytes / GIB
    fixed, peak = (base + slope * weights for base, slope in (FIXED, PEAK))
    besides = MARGIN * (fixed + peak * batched_tokens / MEASURED_BATCH) * GIB
    return max(0, int(memory * share.utilization - share.weight_bytes - besides))


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
