"""The environment of the engines' processes: launchers, CPU threads, the OpenMP library, and the log.

Both engines of a run have the same environment, so they can start at the same time. The GPUs of an engine are an
argument of vLLM (`device_ids`).
"""

import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from loguru import logger

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.logs import is_debug, quiet_transformers
from lmms_eval_mai.engines.vllm import plugin
from lmms_eval_mai.errors import EngineUnavailable

Platform = Literal["cpu", "cuda"]

INSTALL = (
    'Install it in a clone of lmms-eval-mai: `pip install -e ".[vllm]"` on a machine with a GPU, or without a GPU '
    '`pip install -e ".[cpu]" --extra-index-url https://download.pytorch.org/whl/cpu`.'
)

TRIED = (30, 33)
"""The oldest and the newest minor release of vLLM 0 that this package was tried or read with (docs/versions.md)."""

PLUGIN = "lmms_eval_mai"
"""The name of the entry point of `plugin.py`."""

LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""A launcher (torchrun, accelerate) sets them. An engine's process must not see them: it would join the launcher's
group."""

BOUND_THREADS = "VLLM_CPU_OMP_THREADS_BIND"
PRELOADED = "LD_PRELOAD"
OPENMP_LIBRARIES = ("libgomp", "libiomp", "libomp")
"""GCC's, Intel's and LLVM's. vLLM preloads none if the user has preloaded one."""

LOG_LEVEL = "VLLM_LOGGING_LEVEL"
LOG_VARIABLES = (LOG_LEVEL, "VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING")

_lock = threading.Lock()
_users = 0
"""Starts of engines for which `os.environ` is changed now."""
_saved: dict[str, str | None] = {}
"""The user's own values of the variables that are changed now."""
_hidden = contextlib.ExitStack()
"""Hides the messages of transformers meanwhile."""


def detect_platform() -> Platform:
    """Return where vLLM runs on this machine. Raises `EngineUnavailable` with the command that installs vLLM.

    Unless the user asks for more, vLLM then logs warnings and errors only, and on a CPU errors only: its warnings there
    are about our own defaults, and about libraries that its CPU build lacks. The rest is in the engines' logs.
    """
    quiet = not is_debug() and not any(name in os.environ for name in LOG_VARIABLES)
    if quiet:
        os.environ[LOG_LEVEL] = "WARNING"
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineUnavailable(f"engine=vllm needs vLLM, and its import fails ({error}). {INSTALL}") from error
    check_release()
    if current_platform.is_cpu():
        if quiet:
            os.environ[LOG_LEVEL] = "ERROR"
            logging.getLogger("vllm").setLevel(logging.ERROR)
        return "cpu"
    if current_platform.is_cuda_alike():
        return "cuda"
    raise EngineUnavailable(
        "engine=vllm found neither a GPU nor vLLM's CPU build on this machine. Check `nvidia-smi`, or replace vllm "
        'in a clone of lmms-eval-mai: `pip uninstall -y vllm && pip install -e ".[cpu]" --extra-index-url '
        "https://download.pytorch.org/whl/cpu`."
    )


@functools.cache  # warn once
def check_release() -> None:
    """Warn about a release of vLLM with which this package was not tried, and about a missing plugin."""
    import vllm

    major, minor = (*re.findall(r"\d+", vllm.__version__), "0", "0")[:2]
    if not (major == "0" and TRIED[0] <= int(minor) <= TRIED[1]):
        logger.warning(
            f"mai_cascade: vLLM {vllm.__version__} was not tried with this package. It was tried with 0.{TRIED[0]} to "
            f"0.{TRIED[1]} (docs/versions.md)."
        )
    if PLUGIN not in metadata.entry_points(group="vllm.general_plugins").names:
        logger.warning(
            "mai_cascade: vLLM does not know this package's plugin, so engines would go on if this process is killed. "
            "Install the package again (in a clone: `pip install -e .`)."
        )


def shows_log() -> bool:
    """Return whether the user asks for vLLM's log."""
    return is_debug() or os.environ.get(LOG_LEVEL, "INFO").upper() in ("INFO", "DEBUG")


def binds_threads() -> bool:
    """Return whether the user binds vLLM's CPU threads to cores. vLLM then needs a process for the worker."""
    return os.environ.get(BOUND_THREADS, "nobind") != "nobind"


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
        rank = _users_own("LOCAL_RANK")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        one_visible = (bool(visible) and "," not in visible) or "SLURM_GPUS_PER_TASK" in os.environ
        one_gpu_each = one_visible and "TORCHELASTIC_RUN_ID" not in os.environ
        return cls(int(_users_own("LOCAL_WORLD_SIZE") or 1), None if rank is None else int(rank), one_gpu_each)


def _users_own(name: str) -> str | None:
    """Return the user's value of a variable, also while the environment is changed for another engine."""
    with _lock:
        return _saved.get(name, os.environ.get(name))


def worker_count(config: EngineConfig) -> int:
    """Return the number of workers into which the user's arguments divide an engine. Each worker is a process."""
    count = 1
    for name in ("tensor_parallel", "pipeline_parallel", "prefill_context_parallel", "data_parallel"):
        value = config.arguments.get(f"{name}_size")
        count *= int(value) if isinstance(value, int | float) and value >= 1 else 1
    return count


def variables(configs: Sequence[EngineConfig], platform: Platform) -> dict[str, str]:
    """Return the variables that the processes of these engines need, which are all engines of this process."""
    found = {plugin.VARIABLE: f"{os.getpid()}:{log_folder()}"}
    if not shows_log():
        quiet = {"PYTHONWARNINGS": "ignore::FutureWarning", "TRANSFORMERS_VERBOSITY": "error"}
        found |= {name: _users_own(name) or value for name, value in quiet.items()}
    if allowed := _users_own("VLLM_PLUGINS"):  # a list of the plugins that vLLM may load
        found["VLLM_PLUGINS"] = f"{allowed},{PLUGIN}"
    launcher = Launcher.from_environment()
    cores = len(os.sched_getaffinity(0)) // launcher.ranks
    threads = str(max(1, cores // sum(map(worker_count, configs))))
    if platform == "cuda":
        # vLLM forks by default. A process with threads, which may hold another engine's locks, must not be forked.
        found["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # CUDA's own numbers begin with the fastest GPU. vLLM's are those of `nvidia-smi`.
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if launcher.rank is not None and _users_own("OMP_NUM_THREADS") == "1":
            found["OMP_NUM_THREADS"] = threads  # torchrun's 1 makes the weights load slowly
        return found
    # torch warns about the NUMA binding that vLLM chooses.
    found["TORCH_CPP_LOG_LEVEL"] = _users_own("TORCH_CPP_LOG_LEVEL") or "ERROR"
    if not any(config.arguments.get("enforce_eager") is False for config in configs):
        # vLLM would still compile a function that ranks log-probabilities, in five seconds and with a C++ compiler.
        found["TORCHDYNAMO_DISABLE"] = "1"
    if _users_own(BOUND_THREADS) is None:
        # This process prepares the prompts and needs cores too, and a bound thread would wait for it. vLLM's default
        # binds the threads of both engines to the same cores. A binding that the user gives is kept.
        found |= {BOUND_THREADS: "nobind", "OMP_NUM_THREADS": threads, **_intel_openmp()}
    return found


def _intel_openmp() -> dict[str, str]:
    """Return the variables with which an engine's process has Intel's OpenMP library, which vLLM's CPU build brings.
    Empty if it is not installed, or if the user has preloaded a library.

    The threads of vLLM's default, GCC's library, keep their cores for milliseconds after each computation, while this
    process needs a core to prepare images (docs/measurements.md, "lmms-eval's own vLLM model").
    """
    preloaded = _users_own(PRELOADED) or ""
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return {}
    found = [str(Path(str(file.locate())).resolve()) for file in files if file.name == "libiomp5.so"]
    if not found or set(" :") & set(found[0]) or any(name in preloaded for name in OPENMP_LIBRARIES):
        return {}
    paths = ":".join([*filter(None, [preloaded]), found[0]])
    # Milliseconds. With Intel's default of 200, images and decoding took 2 to 4% longer.
    return {PRELOADED: paths, "KMP_BLOCKTIME": _users_own("KMP_BLOCKTIME") or "1"}


@contextlib.contextmanager
def engine_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set these variables inside the block, for the processes that start in it, and remove the launcher's variables.
    Messages of transformers are hidden.

    `os.environ` belongs to the whole process. So all engines that start at the same time must have the same changes;
    the last one restores the user's values.
    """
    global _users
    with _lock:
        if not _users:
            _hidden.enter_context(quiet_transformers())
        _users += 1
        # vLLM adds to the preloaded libraries while it makes its configuration.
        for name in (*changes, *LAUNCHER_VARIABLES, PRELOADED):
            _saved.setdefault(name, os.environ.get(name))
        for name in LAUNCHER_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(changes)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                for name, value in _saved.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
                _saved.clear()
                _hidden.close()


@functools.cache
def log_folder() -> Path:
    """Return the folder of the engines' logs, which is removed at the end of this process. If this process is killed,
    an engine's process removes it (`plugin.py`)."""
    folder = Path(tempfile.mkdtemp(prefix="lmms-eval-mai-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
