"""Checks a machine before an engine starts, for what would end the start or the run minutes later: GPUs that accept one
process or none, and too little shared memory."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

import psutil
from loguru import logger

from lmms_eval_mai.contract import Side
from lmms_eval_mai.errors import EngineUnavailable

MIB = 1 << 20
TOO_LITTLE_SHARED_MEMORY, LITTLE_SHARED_MEMORY = 256 * MIB, 1024 * MIB
"""vLLM's workers exchange messages through /dev/shm, in rings of 10 x 16 MiB and more. They grow during the run, and
a full /dev/shm ends the run with SIGBUS."""

MPS_HINT = (
    "Without NVIDIA's MPS the GPU runs the kernels of one process at a time. With it both engines run at the same "
    "time: start it with `nvidia-cuda-mps-control -d` before the run, and end it with `echo quit | "
    "nvidia-cuda-mps-control`."
)


def check_gpus(gpus: Mapping[Side, tuple[int, ...]]) -> None:
    """Refuse GPUs that do not accept the engines' processes. `gpus`: those of each engine. Raises
    `EngineUnavailable`."""
    for gpu in sorted({gpu for numbers in gpus.values() for gpu in numbers}):
        mode = compute_mode(gpu)
        if mode == "PROHIBITED":
            raise EngineUnavailable(
                f"GPU {gpu} does not accept programs: its compute mode is PROHIBITED. Change it with `sudo nvidia-smi "
                f"-i {gpu} -c DEFAULT`, or use another GPU."
            )
        shared = all(gpu in numbers for numbers in gpus.values()) and len(gpus) > 1
        if mode == "EXCLUSIVE_PROCESS" and shared and not mps_runs():
            raise EngineUnavailable(
                f"Both models would use GPU {gpu}, which accepts only one process at a time: its compute mode is "
                "EXCLUSIVE_PROCESS. Start NVIDIA's MPS (`nvidia-cuda-mps-control -d`), give each model its own GPU "
                "(small_devices=0,large_devices=1), or ask for GPUs in the compute mode DEFAULT."
            )


def check_shared_memory(workers: int, free_bytes: int | None = None) -> None:
    """Refuse too little shared memory for an engine with several workers, or warn about it. `free_bytes`: None for
    those of this machine. Raises `EngineUnavailable`."""
    if free_bytes is None:
        free_bytes = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    if workers <= 1 or free_bytes >= LITTLE_SHARED_MEMORY:
        return
    text = (
        f"/dev/shm has {free_bytes // MIB} MiB, and the {workers} workers of an engine exchange data through it: they "
        "need 1 GiB. Start the container with `--shm-size=8g` or `--ipc=host`."
    )
    if free_bytes < TOO_LITTLE_SHARED_MEMORY:
        raise EngineUnavailable(text)
    logger.warning(f"mai_cascade: {text}")


def compute_mode(gpu: int) -> str:
    """Return the compute mode of a GPU with this number among the visible ones, as `nvidia-smi` names it. `DEFAULT` if
    it cannot be read, as for AMD's GPUs."""
    try:
        import vllm.third_party.pynvml as nvml

        nvml.nvmlInit()
        names = {getattr(nvml, f"NVML_COMPUTEMODE_{name}"): name for name in ("EXCLUSIVE_PROCESS", "PROHIBITED")}
        return names.get(nvml.nvmlDeviceGetComputeMode(_handle(nvml, gpu)), "DEFAULT")
    except Exception as error:
        logger.debug(f"The compute mode of GPU {gpu} cannot be read ({error!r})")
        return "DEFAULT"


def memory_bytes(gpu: int) -> int:
    """Return the memory of a GPU with this number among the visible ones: of a slice of a GPU (MIG), not of the whole
    GPU, which vLLM's platform would return."""
    from vllm.platforms import current_platform

    if _visible_name(gpu).startswith("MIG-"):
        import vllm.third_party.pynvml as nvml

        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetMemoryInfo(_handle(nvml, gpu)).total)
    return int(current_platform.get_device_total_memory(gpu))


def _handle(nvml: Any, gpu: int) -> Any:
    name = _visible_name(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _visible_name(gpu: int) -> str:
    """Return the number or the UUID by which `CUDA_VISIBLE_DEVICES` names a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[gpu].strip() if visible else str(gpu)


def mps_runs() -> bool:
    """Return whether NVIDIA's Multi-Process Service runs: its control daemon has a pipe, and the daemon runs too, or
    the folder of the pipe is mounted from the host of this container."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if not os.path.exists(os.path.join(folder, "control")):
        return False
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    return os.path.ismount(folder) or any(name.startswith("nvidia-cuda-mps") for name in names)
