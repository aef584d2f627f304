"""Checks that the machine's memory holds the weights of sleeping engines (`sleep=true`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from lmms_eval_mai.engines.base import EngineConfig
from lmms_eval_mai.engines.checkpoints import weight_bytes
from lmms_eval_mai.engines.vllm.planning.memory import GIB
from lmms_eval_mai.errors import ArgumentError

PINNED_BYTES_PER_WEIGHT_BYTE = 1.25
"""A sleeping engine copies its weights to pinned memory in blocks, and PyTorch rounds the size of a block up to a power
of two. It keeps the blocks when the engine wakes up. Estimated from vLLM 0.32's allocator, not measured."""

SLEEP_ARGUMENTS: Mapping[str, bool] = {"enable_sleep_mode": True, "sleep_mode_offload_cudagraph": True}
"""The arguments of an engine that can sleep. With the second one, its CUDA graphs leave the GPU too."""


def check_host_memory(configs: Sequence[EngineConfig], available_bytes: int, ranks: int) -> None:
    """Refuse to let these engines sleep if the machine's memory cannot hold their weights. Raises `ArgumentError`.

    While two engines swap, the weights of both are in the machine's memory. `ranks`: processes on this machine that
    each run these engines. If the size of a model is unknown, or vLLM quantizes it while it loads, nothing is checked.
    """
    sizes = [_weight_bytes(config) for config in configs]
    known = [size for size in sizes if size is not None]
    needed = ranks * PINNED_BYTES_PER_WEIGHT_BYTE * sum(known)
    if len(known) < len(sizes) or needed <= available_bytes:
        return
    models = " and ".join(f"{config.model} ({size / GIB:.1f} GiB)" for config, size in zip(configs, known, strict=True))
    of_all_ranks = f" for the {ranks} ranks on this machine" if ranks > 1 else ""
    raise ArgumentError(
        f"sleep=true keeps the weights of a sleeping model in the machine's memory. {models} need up to "
        f"{needed / GIB:.1f} GiB{of_all_ranks}, and {available_bytes / GIB:.1f} GiB are available. Free some memory, "
        "use smaller models, or give each model its own GPU (small_devices=0,large_devices=1) without sleep."
    )


def available_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process can still use: that of the machine, or of its container (`docker --memory`,
    Slurm's `--mem`) if that is less."""
    available: int = psutil.virtual_memory().available
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - int(used)))


def _weight_bytes(config: EngineConfig) -> int | None:
    if "quantization" in config.arguments:
        return None
    return weight_bytes(config.model, config.arguments.get("revision"))
