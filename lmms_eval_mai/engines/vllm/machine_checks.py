"""Checks a machine before an engine starts, for what would end the start or the run minutes later: GPUs that accept one
process or none, and too little shared memory."""

import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil
from loguru import logger

from lmms_eval_mai.contract import EngineConfig, Side
from lmms_eval_mai.engines.vllm.environment import worker_count
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


@dataclass(frozen=True)
class Problem:
    """What is wrong with this machine, and what to do."""

    refusal: bool
    """Whether the engines would fail. If not, they may fail."""
    text: str


def check(configs: Sequence[EngineConfig], gpus: Mapping[Side, tuple[int, ...]]) -> None:
    """Refuse engines that would fail on this machine, and warn about what may fail. `gpus`: the GPUs of each engine by
    side; empty on a CPU. Raises `EngineUnavailable`."""
    for problem in problems(configs, gpus, _shared_memory_bytes()):
        if problem.refusal:
            raise EngineUnavailable(problem.text)
        _warn_once(problem.text)


def problems(
    configs: Sequence[EngineConfig], gpus: Mapping[Side, tuple[int, ...]], shared_memory_bytes: int
) -> Iterator[Problem]:
    """Yield what is wrong with this machine for these engines."""
    for gpu in sorted({gpu for numbers in gpus.values() for gpu in numbers}):
        users = [side for side, numbers in gpus.items() if gpu in numbers]
        mode = compute_mode(gpu)
        if mode == "PROHIBITED":
            text = f"GPU {gpu} does not accept programs: its compute mode is PROHIBITED. Change it with "
            yield Problem(True, f"{text}`sudo nvidia-smi -i {gpu} -c DEFAULT`, or use another GPU.")
        elif mode == "EXCLUSIVE_PROCESS" and len(users) > 1 and not mps_runs():
            yield Problem(
                True,
                f"Both models would use GPU {gpu}, which accepts only one process at a time: its compute mode is "
                "EXCLUSIVE_PROCESS. Start NVIDIA's MPS (`nvidia-cuda-mps-control -d`), give each model its own GPU "
                "(small_devices=0,large_devices=1), or ask for GPUs in the compute mode DEFAULT.",
            )
    workers = max(map(worker_count, configs), default=1)
    if workers > 1 and shared_memory_bytes < LITTLE_SHARED_MEMORY:
        yield Problem(
            shared_memory_bytes < TOO_LITTLE_SHARED_MEMORY,
            f"/dev/shm has {shared_memory_bytes // MIB} MiB, and the {workers} workers of an engine exchange data "
            "through it: they need 1 GiB. Start the container with `--shm-size=8g` or `--ipc=host`.",
        )


def compute_mode(gpu: int) -> str:
    """Return the compute mode of a GPU with this number among the visible ones, as `nvidia-smi` names it. `DEFAULT` if
    it cannot be read."""
    try:
        import vllm.third_party.pynvml as nvml
        from vllm.platforms import current_platform

        nvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        name = visible.split(",")[gpu] if visible else str(gpu)
        number = current_platform.device_control_id_to_physical_device_id(name)
        mode = nvml.nvmlDeviceGetComputeMode(nvml.nvmlDeviceGetHandleByIndex(int(number)))
    except Exception as error:  # AMD's GPUs, MIG slices
        logger.debug(f"The compute mode of GPU {gpu} cannot be read ({error!r})")
        return "DEFAULT"
    return {
        nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
        nvml.NVML_COMPUTEMODE_PROHIBITED: "PROHIBITED",
    }.get(mode, "DEFAULT")


def mps_runs() -> bool:
    """Return whether NVIDIA's Multi-Process Service runs: its control daemon has a pipe, and the daemon runs too, or
    the folder of the pipe is mounted from the host of this container."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if not os.path.exists(os.path.join(folder, "control")):
        return False
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    return os.path.ismount(folder) or any(name.startswith("nvidia-cuda-mps") for name in names)


@functools.cache  # both engines, and every restart, are checked
def _warn_once(text: str) -> None:
    logger.warning(f"mai_cascade: {text}")


def _shared_memory_bytes() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return 0
