"""Decides where a vLLM engine runs: on which GPUs, or with how many CPU threads, and with which environment
variables."""

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.vllm import nvml, openmp
from lmms_eval_mai.engines.vllm.internals import set_first_call
from lmms_eval_mai.engines.vllm.planning.gpus import CUDA_SHARE, Gpu
from lmms_eval_mai.errors import ArgumentError

Platform = Literal["cpu", "cuda"]

LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""A launcher (torchrun, accelerate) sets them. An engine's process must not see them: it would join the launcher's
group."""

BOUND_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
THREADS_SET_BY_VLLM = "VLLM_OMP_NUM_THREADS_SET_BY_VLLM"
"""If it is 1, vLLM regards OMP_NUM_THREADS as its own choice for the time in which the weights are loaded."""

_environment_lock = threading.Lock()
"""Held while `os.environ` has the variables of one engine. Two engines may start at the same time."""


@dataclass(frozen=True)
class Launcher:
    """The processes that a launcher started on this machine."""

    ranks: int = 1
    rank: int | None = None
    """The number of this process among them, from 0. None: no launcher started this process."""
    one_gpu_each: bool = False
    """Whether each rank sees a single GPU of its own, as Slurm's srun arranges it. All ranks of torchrun see the same
    GPUs."""

    @classmethod
    def from_environment(cls) -> "Launcher":
        rank = os.environ.get("LOCAL_RANK")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        one_visible = (bool(visible) and "," not in visible) or "SLURM_GPUS_PER_TASK" in os.environ
        one_gpu_each = one_visible and "TORCHELASTIC_RUN_ID" not in os.environ
        return cls(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), None if rank is None else int(rank), one_gpu_each)


def visible_gpus(platform: Platform) -> tuple[Gpu, ...]:
    """Return the GPUs that this process can see."""
    if platform == "cpu":
        return ()
    if found := nvml.visible_gpus():
        return found
    from vllm.platforms import current_platform  # AMD's GPUs are not in NVML

    count: int = current_platform.device_count()
    totals = [int(current_platform.get_device_total_memory(number)) for number in range(count)]
    return tuple(Gpu("GPU", total, int(total * CUDA_SHARE)) for total in totals)


def given_devices(side: str, given: Any, gpu_count: int, launcher: Launcher) -> tuple[int, ...] | None:
    """Return the GPUs that the user names (`small_devices=0` or `large_devices=[1,2]`), None if the user names none.

    Raises `ArgumentError` if a GPU does not exist, or if two ranks of a launcher would share a GPU.
    """
    if given is None:
        return None
    if launcher.ranks > 1:
        raise ArgumentError(
            f"{side}_devices={given} would give the same GPUs to all {launcher.ranks} ranks on this machine. Leave it "
            "out: each rank then uses the GPU with its own number. Or start a single process."
        )
    # lmms-eval would split 0,1 at its comma, so 0;1 and 0+1 are accepted too.
    parts = given if isinstance(given, list) else str(given).replace(";", ",").replace("+", ",").split(",")
    found = [str(part).strip() for part in parts]
    if not all(part.isdigit() for part in found):
        raise ArgumentError(f"{side}_devices={given} is not a list of GPU numbers: write {side}_devices=[0,1].")
    if not gpu_count:
        raise ArgumentError(f"{side}_devices={given} names GPUs, but vLLM runs on the CPU here. Leave it out.")
    if max(map(int, found)) >= gpu_count:
        raise ArgumentError(
            f"{side}_devices={given} names a GPU that does not exist: this process can use {gpu_count} "
            f"GPU{'s' * (gpu_count != 1)}. Give numbers from 0 to {gpu_count - 1}."
        )
    if len(set(map(int, found))) < len(found):
        raise ArgumentError(f"{side}_devices={given} names a GPU twice. Give each number once.")
    return tuple(map(int, found))


def gpu_of_rank(gpu_count: int, launcher: Launcher) -> int | None:
    """Return the GPU with the number of this rank, because each rank runs its own pair on its own GPU. None: there is
    no launcher or no GPU.

    Slurm and others let each rank see one GPU, its own, which then has the number 0. Raises `ArgumentError` if two
    ranks would share a GPU.
    """
    if not gpu_count or launcher.rank is None:
        return None
    if gpu_count == 1 and launcher.one_gpu_each:
        return 0
    if launcher.rank >= gpu_count:
        raise ArgumentError(
            f"{launcher.ranks} ranks run on this machine, but this rank can use only {gpu_count} "
            f"GPU{'s' * (gpu_count != 1)}. Each rank needs a GPU for its own pair. Start one rank per GPU, or let "
            "the ranks share endpoints (small=http://..., large=http://...)."
        )
    return launcher.rank


def renderer_processes(side: str, given: Any) -> int:
    """Return the number of processes that render prompts; 1: this process. If none is given, it is 1 on up to four
    cores, else one for every four cores of this rank, but 2 to 4.

    Measured: one process prepares 70 images of one megapixel per second, and takes 1.4 times the CPU time of this
    process. An H100 is estimated to answer 15 to 50. The other cores are for the engines and for this process.
    """
    can_share_memory = hasattr(os, "memfd_create")
    if given is None:
        cores = len(os.sched_getaffinity(0)) // Launcher.from_environment().ranks
        return 1 if cores <= 4 or not can_share_memory else max(2, min(4, cores // 4))
    count = positive_int(f"{side}_renderer_processes", given)
    if count > 1 and not can_share_memory:
        raise ArgumentError(f"{side}_renderer_processes={count} needs Linux. Leave it out.")
    return count


def worker_count(engine_args: Any) -> int:
    """Return the number of workers into which vLLM divides the engine. Each worker is a process."""
    dimensions = ("tensor_parallel", "pipeline_parallel", "prefill_context_parallel", "data_parallel")
    return math.prod(getattr(engine_args, f"{dimension}_size") for dimension in dimensions)


def environment(gpus: tuple[int, ...] | None, workers: int, platform: Platform) -> dict[str, str]:
    """Return the variables that the engine's processes need. `workers`: workers of all engines of this process."""
    if platform == "cpu":
        return _cpu_threads(workers)
    # vLLM forks by default. A process with threads, which may hold another engine's locks, must not be forked.
    variables = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if gpus is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
        numbers = visible.split(",") if visible else None
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(numbers[gpu] if numbers else str(gpu) for gpu in gpus)
        if os.environ.get("HIP_VISIBLE_DEVICES"):  # AMD's GPUs; vLLM refuses to start if the two differ
            variables["HIP_VISIBLE_DEVICES"] = variables["CUDA_VISIBLE_DEVICES"]
        # The plan has NVML's numbers, as `nvidia-smi`. CUDA's default numbers begin with the fastest GPU.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return variables | _loading_threads(workers)


def _loading_threads(workers: int) -> dict[str, str]:
    """Return the variables that replace a launcher's OMP_NUM_THREADS=1, with which the weights load slowly.

    Without the variable, the engines of all ranks would each start one thread per core. With the mark, vLLM uses one
    thread again after the weights are loaded. A user's own number of threads is kept.
    """
    launcher = Launcher.from_environment()
    if launcher.rank is None or os.environ.get("OMP_NUM_THREADS") != "1":
        return {}
    return {"OMP_NUM_THREADS": str(_threads_per_worker(launcher, workers)), THREADS_SET_BY_VLLM: "1"}


def _threads_per_worker(launcher: Launcher, workers: int) -> int:
    """Return the cores of this machine divided among the workers of all ranks."""
    return max(1, len(os.sched_getaffinity(0)) // (launcher.ranks * workers))


def threads_are_bound() -> bool:
    """Return whether the user binds vLLM's CPU threads to cores."""
    return BOUND_THREADS in os.environ


def _cpu_threads(workers: int) -> dict[str, str]:
    """Divide this rank's cores among the workers and bind no thread to a core.

    This process prepares the prompts and needs cores too, and a bound thread would wait for it. vLLM's default binds
    the threads of both engines to the same cores. Measured on two cores only; on many cores or two sockets a binding
    given by the user may be faster, so it is kept.
    """
    if threads_are_bound():
        return {}
    threads = _threads_per_worker(Launcher.from_environment(), workers)
    return {BOUND_THREADS: "nobind", "OMP_NUM_THREADS": str(threads), **openmp.variables()}


class ChildEnvironment:
    """Sets variables for the processes that start inside the `with` block, and removes the launcher's variables.

    `first_call`: a function of a module that each of these processes calls before it imports vLLM.

    `os.environ` belongs to the whole process, so one engine at a time may change it. `restore` ends the change early:
    the next engine can start its processes while this one is still loading.
    """

    def __init__(self, variables: dict[str, str], first_call: Callable[[], None] | None = None) -> None:
        self._variables = variables
        self._first_call = first_call
        self._saved: list[dict[str, str | None]] = []
        """One element while the variables are set. A list, because `pop` is atomic: two threads may restore."""

    def __enter__(self) -> "ChildEnvironment":
        _environment_lock.acquire()
        # vLLM adds to the preloaded libraries while it makes its configuration.
        changed = (*self._variables, *LAUNCHER_VARIABLES, openmp.PRELOADED)
        self._saved.append({name: os.environ.get(name) for name in changed})
        for name in LAUNCHER_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(self._variables)
        set_first_call(self._first_call)
        return self

    def restore(self) -> None:
        """Restore the variables. Any thread may call this, any number of times."""
        try:
            saved = self._saved.pop()
        except IndexError:
            return
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        set_first_call(None)
        _environment_lock.release()

    def __exit__(self, *error: object) -> None:
        self.restore()


def unchanged_environment() -> threading.Lock:
    """Return a context manager in which `os.environ` is the user's own, without the variables of another engine."""
    return _environment_lock
