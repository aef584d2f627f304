"""Checks the machine before an engine starts, for what would end the start or the run minutes later.

`Machine.here` gathers the facts, `problems` judges them, and `check` refuses or warns. `planning/` has the memory of
the GPUs.

To add a check, add its fact to `Machine` and a function to `CHECKS`.
"""

import functools
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from loguru import logger

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import check_weights
from lmms_eval_mai.engines.vllm.nvml import VisibleGpu
from lmms_eval_mai.engines.vllm.planning.gpus import Gpu
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable

MIB = 1 << 20
TOO_LITTLE_SHARED_MEMORY = 256 * MIB
"""vLLM's workers exchange messages through /dev/shm, in rings of 10 x 16 MiB and more. They grow during the run, and
a full /dev/shm ends the run with SIGBUS."""
LITTLE_SHARED_MEMORY = 1024 * MIB

SOCKET_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket."""
SOCKET_NAME = 1 + 36
"""vLLM adds a slash and a UUID to the folder of its sockets."""
NETWORK_FILE_SYSTEMS = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "panfs"),
    *("pvfs2", "smb3"),
}

MPS_DAEMON = "nvidia-cuda-mps"
"""How the name of MPS's control daemon begins. Linux keeps 15 characters of a name."""

Level = Literal["refusal", "warning", "hint"]


@dataclass(frozen=True)
class Problem:
    """One finding: what is wrong, and what to do."""

    level: Level
    """`refusal`: the engines would fail. `warning`: they may fail. `hint`: they would be slower than possible."""
    text: str


@dataclass(frozen=True)
class PlacedEngine:
    """One engine, and the GPUs on which it will run."""

    config: EngineConfig
    gpus: tuple[int, ...]
    """Numbers of its GPUs. Empty on a CPU."""

    @property
    def workers(self) -> int:
        """Worker processes that hold one copy of the model together."""
        names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        tensor_parallel, stages, copies = (int(self.config.arguments.get(name) or 1) for name in names)
        return max(1, len(self.gpus) // copies) if self.gpus else tensor_parallel * stages

    @property
    def sleeps(self) -> bool:
        """Whether it takes turns on its GPUs with another engine."""
        return bool(self.config.arguments.get("enable_sleep_mode"))


@dataclass(frozen=True)
class Machine:
    """The facts of a machine that the checks need."""

    shared_memory_bytes: int
    """Free space of /dev/shm."""
    has_compiler: bool
    """Whether there is a C compiler where Triton looks for one."""
    has_python_header: bool
    mps: bool
    """Whether NVIDIA's Multi-Process Service runs, with which processes use a GPU at the same time."""
    socket_folder: str
    socket_file_system: str
    """Type of the file system of `socket_folder`."""

    @classmethod
    def here(cls) -> "Machine":
        """Return the facts of this machine."""
        folder = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
        return cls(
            shared_memory_bytes=_free_bytes("/dev/shm"),
            has_compiler=bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")),
            has_python_header=_has_python_header(),
            mps=mps_runs(),
            socket_folder=folder,
            socket_file_system=_file_system(os.path.realpath(folder), Path("/proc/mounts").read_text(errors="replace")),
        )


def check(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine | None = None) -> None:
    """Refuse engines that would fail on this machine, and warn about what may fail. `gpus`: all visible GPUs, none on a
    CPU.

    Raises `EngineUnavailable`, or `ArgumentError` if weight files are missing.
    """
    for problem in problems(engines, gpus, machine or Machine.here()):
        if problem.level == "refusal":
            raise EngineUnavailable(problem.text)
        _log(problem)
    for engine in engines:
        if engine.config.arguments.get("load_format") != "dummy":
            check_weights(engine.config.side, engine.config.model, engine.config.arguments.get("revision"))


def check_readable(configs: Sequence[EngineConfig], gpus: Sequence[Gpu]) -> None:
    """Refuse GPUs whose memory cannot be read, unless the user gives context and memory of each engine. Raises
    `ArgumentError`."""
    unreadable = [(number, gpu) for number, gpu in enumerate(gpus) if isinstance(gpu, VisibleGpu) and not gpu.readable]
    memory = ("gpu_memory_utilization", "kv_cache_memory_bytes")
    left_to_us = [
        config.side
        for config in configs
        if "max_model_len" not in config.arguments or not any(name in config.arguments for name in memory)
    ]
    if unreadable and left_to_us:
        number, gpu = unreadable[0]
        shares = ", ".join(f"{side}_gpu_memory_utilization" for side in left_to_us)
        raise ArgumentError(
            f"The memory of GPU {number} ({gpu.name}) cannot be read, so it cannot be divided. Set {shares} and "
            f"max_model_len, for example to {0.4 if len(configs) > 1 else 0.85} and 16384."
        )


def problems(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    """Yield what is wrong with this machine for these engines."""
    for find in CHECKS:
        yield from find(engines, gpus, machine)


def mps_runs() -> bool:
    """Return whether NVIDIA's Multi-Process Service runs. Never starts or stops it.

    Its control daemon has a pipe, where the CUDA programs look for it. The pipe of a daemon that was killed remains, so
    the daemon must run too. Inside a container the daemon of the host is not visible, but the folder of its pipe is
    mounted.
    """
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if not os.path.exists(os.path.join(folder, "control")):
        return False
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    return os.path.ismount(folder) or any(name.startswith(MPS_DAEMON) for name in names)


@functools.cache  # both engines, and every restart, are checked
def _log(problem: Problem) -> None:
    (logger.warning if problem.level == "warning" else logger.info)(f"mai_cascade: {problem.text}")


# --- checks -----------------------------------------------------------------------------------------------


def _compute_mode(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    for number, gpu, users in _used(engines, gpus):
        if gpu.compute_mode == "prohibited":
            yield Problem(
                "refusal",
                f"GPU {number} ({gpu.name}) does not accept programs: its compute mode is PROHIBITED. Change it with "
                f"`sudo nvidia-smi -i {number} -c DEFAULT`, or use another GPU.",
            )
        elif gpu.compute_mode == "exclusive" and not machine.mps and (len(users) > 1 or users[0].sleeps):
            yield Problem(
                "refusal",
                f"Both models would use GPU {number} ({gpu.name}), which accepts only one process at a time: its "
                "compute mode is EXCLUSIVE_PROCESS. Start NVIDIA's MPS (`nvidia-cuda-mps-control -d`), give each model "
                "its own GPU (small_devices=0,large_devices=1), or ask for GPUs in the compute mode DEFAULT.",
            )


def _slices(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    for number, gpu, users in _used(engines, gpus):
        for engine in users:
            if gpu.mig and engine.workers > 1:
                yield Problem(
                    "refusal",
                    f"{engine.config.side}={engine.config.model} would be divided over {engine.workers} GPUs, and GPU "
                    f"{number} is a MIG slice: slices cannot work together. Set "
                    f"{engine.config.side}_tensor_parallel_size=1, or use whole GPUs.",
                )


def _shared_memory(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    workers = max((engine.workers for engine in engines), default=1)
    free = machine.shared_memory_bytes
    if workers > 1 and free < LITTLE_SHARED_MEMORY:
        yield Problem(
            "refusal" if free < TOO_LITTLE_SHARED_MEMORY else "warning",
            f"/dev/shm has {free // MIB} MiB, and the {workers} workers of an engine exchange data through it: they "
            "need 1 GiB. Start the container with `--shm-size=8g` or `--ipc=host`.",
        )


def _compiler(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    """vLLM compiles kernels at their first use, also with `enforce_eager`: Triton builds its launchers in C."""
    if not gpus:
        return
    if not machine.has_compiler:
        yield Problem(
            "warning",
            "There is no C compiler, and vLLM compiles kernels when it starts. If it fails, install one (`apt install "
            "gcc`), or name it in the environment variable CC.",
        )
    if not machine.has_python_header:
        version = sysconfig.get_python_version()
        yield Problem(
            "warning",
            "Python's header file Python.h is missing, and vLLM compiles kernels when it starts. If it fails, install "
            f"the header (`apt install python{version}-dev`).",
        )


def _sockets(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    folder = machine.socket_folder
    length = len(os.fsencode(folder)) + SOCKET_NAME
    if length > SOCKET_PATH_LIMIT:
        yield Problem(
            "refusal",
            f"The folder for temporary files, {folder}, is too long for vLLM's sockets: their paths would have {length}"
            f" bytes, and {SOCKET_PATH_LIMIT} are allowed. Set the environment variable VLLM_RPC_BASE_PATH=/tmp.",
        )
    elif machine.socket_file_system in NETWORK_FILE_SYSTEMS:
        yield Problem(
            "warning",
            f"The folder for temporary files, {folder}, is on a network file system "
            f"({machine.socket_file_system}), where vLLM's sockets may not work. If an engine does not start, set the "
            "environment variable VLLM_RPC_BASE_PATH=/tmp.",
        )


def _service(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu], machine: Machine) -> Iterator[Problem]:
    shared = [number for number, _, users in _used(engines, gpus) if len(users) > 1 and not users[0].sleeps]
    if shared and not machine.mps:
        yield Problem("hint", f"The models share GPU {','.join(map(str, shared))}. {MPS_HINT}")


MPS_HINT = (
    "Without NVIDIA's MPS the GPU runs the kernels of one process at a time. With it both engines run at the same "
    "time: start it with `nvidia-cuda-mps-control -d` before the run, and end it with `echo quit | "
    "nvidia-cuda-mps-control`."
)

CHECKS = (_compute_mode, _slices, _shared_memory, _compiler, _sockets, _service)


def _used(engines: Sequence[PlacedEngine], gpus: Sequence[Gpu]) -> Iterator[tuple[int, VisibleGpu, list[PlacedEngine]]]:
    """Yield the GPUs that engines use, with their numbers and engines. GPUs that NVML does not know are left out."""
    for number, gpu in enumerate(gpus):
        users = [engine for engine in engines if number in engine.gpus]
        if users and isinstance(gpu, VisibleGpu):
            yield number, gpu, users


# --- facts ------------------------------------------------------------------------------------------------


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _has_python_header() -> bool:
    scheme = sysconfig.get_default_scheme()
    if scheme == "posix_local":  # Debian's own scheme, in which no headers are installed
        scheme = "posix_prefix"
    return Path(sysconfig.get_paths(scheme)["include"], "Python.h").is_file()


def _file_system(path: str, mounts: str) -> str:
    """Return the type of the file system of a path. `mounts`: the content of /proc/mounts."""
    found = ("", "unknown")
    for line in mounts.splitlines():
        _, mounted, kind = line.split()[:3]
        mounted = mounted.replace("\\040", " ")
        is_above = path == mounted or path.startswith(mounted.rstrip("/") + "/")
        if is_above and len(mounted) >= len(found[0]):
            found = (mounted, kind)
    return found[1]
