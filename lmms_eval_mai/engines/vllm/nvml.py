"""Reads the GPUs of this machine from NVML, the library behind `nvidia-smi`. It opens no CUDA context.

A CUDA context takes about half a GiB on each GPU, and a process with a context must not fork.
"""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from loguru import logger

from lmms_eval_mai.engines.vllm.planning.gpus import Gpu

ComputeMode = Literal["default", "exclusive", "prohibited"]


@dataclass(frozen=True)
class VisibleGpu(Gpu):
    """One GPU, or one MIG slice of a GPU, that this process can use. Its memory is 0 if it cannot be read."""

    compute_mode: ComputeMode = "default"
    """`exclusive`: only one process at a time may use the GPU. `prohibited`: none may."""
    mig: bool = False
    """Whether this is a slice of a GPU, which NVIDIA calls a MIG device."""

    @property
    def readable(self) -> bool:
        """Whether its memory can be read."""
        return self.total_bytes > 0


@functools.cache
def visible_gpus() -> tuple[VisibleGpu, ...]:
    """Return the GPUs that this process can use, in the order of CUDA's numbers; none if NVML is missing.

    The first result is kept: an engine that restarts gets the same plan as at its first start, although the other
    engine uses memory now.
    """
    try:
        import vllm.third_party.pynvml as nvml
    except ImportError as error:
        logger.debug(f"GPUs are not read: vLLM cannot be imported ({error})")
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.debug(f"GPUs are not read: there is no NVML ({error})")
        return ()
    try:
        return tuple(_gpus(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
    except nvml.NVMLError as error:
        logger.debug(f"GPUs are not read ({error})")
        return ()
    finally:
        nvml.nvmlShutdown()


def _gpus(nvml: Any, visible: str | None) -> Iterator[VisibleGpu]:
    """Yield the GPUs. `visible`: the value of `CUDA_VISIBLE_DEVICES`, which ends at its first wrong element, as in
    CUDA."""
    all_gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    chosen = [str(number) for number in range(len(all_gpus))] if visible is None else visible.split(",")
    for name in chosen:
        handle = _handle(nvml, all_gpus, name.strip())
        if handle is None:
            return
        if _is_divided(nvml, handle):
            handle = _first_slice(nvml, handle)
        if handle is not None:
            yield _gpu(nvml, handle)


def _handle(nvml: Any, all_gpus: list[Any], name: str) -> Any | None:
    """Return the GPU with this number, with this beginning of its UUID (`GPU-...`), or the slice with this UUID
    (`MIG-...`). None: there is none."""
    if name.isdecimal():
        return all_gpus[int(name)] if int(name) < len(all_gpus) else None
    if name.startswith("MIG-"):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:
            return None
    if not name.startswith("GPU-"):
        return None
    return next((handle for handle in all_gpus if nvml.nvmlDeviceGetUUID(handle).startswith(name)), None)


def _is_divided(nvml: Any, handle: Any) -> bool:
    """Return whether this GPU is divided into slices. CUDA then uses a slice, never the whole GPU."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:  # this kind of GPU has no slices, or the handle is a slice
        return False


def _first_slice(nvml: Any, handle: Any) -> Any | None:
    """Return the first slice of a divided GPU: CUDA uses it if `CUDA_VISIBLE_DEVICES` names none. None: it has none."""
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:  # no slice has this number
            continue
    return None


def _gpu(nvml: Any, handle: Any) -> VisibleGpu:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    except nvml.NVMLError:
        total, free = 0, 0
    mig = _is_slice(nvml, handle)
    owner = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if mig else handle
    return VisibleGpu(str(nvml.nvmlDeviceGetName(handle)), total, free, _compute_mode(nvml, owner), mig)


def _is_slice(nvml: Any, handle: Any) -> bool:
    try:
        found = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    except nvml.NVMLError:
        return False
    return bool(getattr(found, "value", found))


def _compute_mode(nvml: Any, handle: Any) -> ComputeMode:
    modes: dict[int, ComputeMode] = {
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    }
    try:
        return modes.get(nvml.nvmlDeviceGetComputeMode(handle), "default")
    except nvml.NVMLError:
        return "default"
