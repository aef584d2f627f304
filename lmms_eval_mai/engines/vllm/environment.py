"""The environment in which vLLM configures an engine and starts its processes: CPU threads, launcher, log.

`os.environ` belongs to the whole process, and vLLM reads it. So it is changed only while an engine is configured and
its processes are started, for one engine at a time. The GPUs of an engine are an argument of vLLM (`device_ids`).
"""

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.checkpoints import is_debug, quiet_transformers
from lmms_eval_mai.errors import EngineUnavailable

INSTALL = (
    'Install it in a clone of lmms-eval-mai: `pip install -e ".[vllm]"` on a machine with a GPU, or without a GPU '
    '`pip install -e ".[cpu]" --extra-index-url https://download.pytorch.org/whl/cpu`.'
)

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a launcher (torchrun, accelerate). With them an engine's process would join the launcher's group."""

BOUND_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
MEDIA_LIMIT = "VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES"
"""vLLM 0.33 refuses a request whose decoded images are larger together. Its default is that of 178.9 megapixels."""

_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Machine:
    """Where the engines of this process run."""

    platform: Literal["cpu", "cuda"]
    rank: int | None
    """The number of this process among the `ranks` that a launcher started here. None: there is no launcher."""
    ranks: int


def worker_count(config: EngineConfig) -> int:
    """Return the number of workers into which the user's arguments divide an engine. Each worker is a process."""
    count = 1
    for name in ("tensor_parallel", "pipeline_parallel", "prefill_context_parallel", "data_parallel"):
        value = config.arguments.get(f"{name}_size")
        count *= int(value) if isinstance(value, int | float) and value >= 1 else 1
    return count


@contextlib.contextmanager
def engine_environment(pair: Sequence[EngineConfig]) -> Iterator[Machine]:
    """Change the environment in the block as the processes of these engines need it. Blocks while another engine is
    configured or spawned. `pair`: all vLLM engines of a pair. Raises `EngineUnavailable`.

    Unless the user asks for more, vLLM logs warnings and errors only, and on a CPU errors only: its warnings there are
    about our own defaults, and about libraries that its CPU build lacks.
    """
    with _one_at_a_time, contextlib.ExitStack() as stack:
        quiet = not is_debug() and not any(name.startswith(("VLLM_LOGGING", "VLLM_CONFIGURE")) for name in os.environ)
        if quiet:
            stack.enter_context(_quiet_vllm())
            stack.enter_context(quiet_transformers())
        given, platform = os.environ, detect_platform()
        rank, ranks = given.get("LOCAL_RANK"), int(given.get("LOCAL_WORLD_SIZE", "1"))
        machine = Machine(platform, None if rank is None else int(rank), ranks)
        changes = _variables(pair, machine) | dict.fromkeys(LAUNCHER)
        if quiet:
            changes["VLLM_LOGGING_LEVEL"] = "ERROR" if platform == "cpu" else "WARNING"
            changes["PYTHONWARNINGS"] = given.get("PYTHONWARNINGS", "ignore::FutureWarning")
            changes["TRANSFORMERS_VERBOSITY"] = given.get("TRANSFORMERS_VERBOSITY", "error")
        stack.callback(_restore, dict(given), [*changes], platform)
        _set(changes)
        yield machine


def _restore(before: Mapping[str, str], changed: Iterable[str], platform: str) -> None:
    """Give these variables the values that they had. On a CPU, vLLM's configuration adds variables for its processes,
    such as preloaded libraries, and the user's own processes must not get them."""
    names = {*changed, *(os.environ if platform == "cpu" else ())}
    _set({name: before.get(name) for name in names})


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _quiet_vllm() -> Iterator[None]:
    """Let vLLM log only errors in this process. vLLM configures its logger when it is imported, or, since 0.31, when it
    builds an engine."""
    with contextlib.suppress(ImportError):
        importlib.import_module("vllm.logger")
    vllm = logging.getLogger("vllm")
    level, handlers = vllm.level, vllm.handlers[:]
    vllm.setLevel(logging.ERROR)
    try:
        yield
    finally:
        vllm.setLevel(level)
        vllm.handlers[:] = handlers or vllm.handlers


def lift_media_limit() -> None:
    """Let vLLM take images of any size in this process, unless the user has set a limit. It reads the limit at each
    request, and protects nothing with it here: our images are decoded before."""
    from vllm import envs

    if MEDIA_LIMIT not in os.environ:
        setattr(envs, MEDIA_LIMIT, 0)


def detect_platform() -> Literal["cpu", "cuda"]:
    """Return where vLLM runs on this machine. Raises `EngineUnavailable` with the command that installs vLLM."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineUnavailable(f"engine=vllm needs vLLM, and its import fails ({error}). {INSTALL}") from error
    if current_platform.is_cpu():
        return "cpu"
    if current_platform.is_cuda_alike():
        return "cuda"
    raise EngineUnavailable(
        "engine=vllm found neither a GPU nor vLLM's CPU build on this machine. Check `nvidia-smi`, or replace vLLM "
        f"(`pip uninstall -y vllm`). {INSTALL}"
    )


def _variables(pair: Sequence[EngineConfig], machine: Machine) -> dict[str, str | None]:
    given = os.environ
    cores = len(os.sched_getaffinity(0)) // machine.ranks
    threads = str(max(1, cores // sum(map(worker_count, pair))))
    if machine.platform == "cuda":
        # vLLM forks by default. A process with threads, which may hold another engine's locks, must not be forked.
        # CUDA's own numbers begin with the fastest GPU. vLLM's are those of `nvidia-smi`.
        variables: dict[str, str | None] = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if machine.rank is not None and given.get("OMP_NUM_THREADS") == "1":
            variables["OMP_NUM_THREADS"] = threads  # torchrun's 1 makes the weights load slowly
        return variables
    # torch warns about vLLM's NUMA binding.
    variables = {"TORCH_CPP_LOG_LEVEL": given.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
    if "CPU_VISIBLE_MEMORY_NODES" not in given:  # without this, vLLM 0.33 starts no more replicas than there are nodes
        variables["VLLM_CPU_SIM_MULTI_NUMA"] = given.get("VLLM_CPU_SIM_MULTI_NUMA", "0")
    if not any(config.arguments.get("enforce_eager") is False for config in pair):
        # vLLM would still compile a function that ranks log-probabilities, in five seconds and with a C++ compiler.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    if BOUND_THREADS in given:
        return variables
    # This process prepares the prompts and needs cores too, and a bound thread would wait for it. vLLM's default binds
    # the threads of both engines to the same cores.
    variables |= {BOUND_THREADS: "nobind", "OMP_NUM_THREADS": threads}
    return variables
