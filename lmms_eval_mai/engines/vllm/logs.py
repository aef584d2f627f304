"""Limits the output of vLLM, in this process and in the processes of its engines: by default to warnings for the user.

vLLM applies `logging.json` in this process, and at the beginning of every process of an engine. With it, vLLM prints
warnings, except those that are known to be harmless, and writes everything from INFO upwards to a file until the engine
is ready. If the engine does not start, the end of that file becomes part of the error message.

vLLM's own configuration stays in place if the user asks for its log: with a `VLLM_...` logging variable, with a logging
argument of vLLM, or with `--verbosity DEBUG`.
"""

import logging
import multiprocessing.util
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection
from pathlib import Path

from lmms_eval_mai.engines.logs import is_debug
from lmms_eval_mai.engines.vllm.internals import flush_standard_streams

CONFIGURATION = Path(__file__).with_name("logging.json")

START_LOG = "LMMS_EVAL_MAI_START_LOG"
"""Environment variable of an engine's processes: the PID of the process that starts the engine, a colon, and the path
of the log file."""

USER_VARIABLES = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH", "VLLM_CONFIGURE_LOGGING")
USER_ARGUMENTS = {"logging_config", "log_level", "log_config_file"}

HARMLESS = (
    # Consequences of our own defaults on a CPU (`arguments.set_defaults`), and of xgrammar, which installs Triton.
    "Enforce eager set, disabling torch.compile",
    "Inductor compilation was disabled by user settings",
    "Triton is installed, but doesn't include CPU backend",
    "Triton is not installed. triton-cpu is expected on x86 CPUs",
    "Model Runner V2 requires Triton",
    "Reset SSM cache type to float32",
    "CPU backend doesn't allow to use `torch.set_num_threads`",
    "libtcmalloc is not found in LD_PRELOAD",
    "libiomp is not found in LD_PRELOAD",
    # An engine that does not end in time is killed, on purpose.
    "[shutdown] Process manager: force killing",
    "[shutdown] force killing",
    # About videos, which no benchmark here has.
    "Qwen3VL video processing does not apply",
)
"""How the messages of harmless warnings begin."""

HARMLESS_ON_A_CPU = "is set; leaving Torch threads at"
"""Part of a warning about the threads that a GPU's engine leaves to the operators of the CPU. On a CPU they compute the
model, and `placement.environment` sets their number."""

START_FAILURES = ("EngineCore failed to start", "WorkerProc failed to start")
"""How the messages of failed starts begin. Our own error message repeats their traceback."""

TAIL_LINES = 15

_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+", re.MULTILINE)


def is_quiet(arguments: Collection[str] = ()) -> bool:
    """Return whether vLLM's log is hidden. `arguments`: the names of the engine's arguments."""
    return not (is_debug() or USER_ARGUMENTS & set(arguments) or any(name in os.environ for name in USER_VARIABLES))


class HideRepeatedOrHarmless(logging.Filter):
    """Drops harmless warnings, and errors of a start that our own error message repeats."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if HARMLESS_ON_A_CPU in message:
            from vllm.platforms import current_platform

            return not current_platform.is_cpu()
        return not message.startswith((*HARMLESS, *START_FAILURES))


def shows_only_errors() -> bool:
    """Return whether the user wants less of vLLM's log than our default shows, as `lmms-eval-mai doctor` does."""
    return os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in ("ERROR", "CRITICAL")


def hide_harmless_warnings() -> None:
    """Hide the harmless warnings of this process that are logged before vLLM has a configuration, or by transformers.
    An engine's process calls this before it imports vLLM.

    A filter of a logger does not apply to its children, so each is named."""
    for name in ("vllm.triton_utils.importing", "transformers.models.qwen3_vl.video_processing_qwen3_vl"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, HideRepeatedOrHarmless) for one in logger.filters):
            logger.addFilter(HideRepeatedOrHarmless())


def quiet_environment(platform: str) -> dict[str, str]:
    """Return the variables that hide what an engine's process prints outside of Python's logging."""
    # torch warns about the NUMA binding that vLLM chooses on a CPU. On a GPU this would also hide NCCL's warnings.
    return {"TORCH_CPP_LOG_LEVEL": "ERROR"} if platform == "cpu" and "TORCH_CPP_LOG_LEVEL" not in os.environ else {}


class StartLogHandler(logging.FileHandler):
    """Writes the log of an engine's start until the process that started the engine removes the file.

    A removed file that is still open takes space on the disk, so this handler then closes it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if os.path.exists(self.baseFilename):
            super().emit(record)
        else:
            self.close()
            self.setLevel(logging.CRITICAL + 1)  # ignore all further records: the file must not be created again


def start_log_handler() -> logging.Handler:
    """Return the handler that writes the start log. vLLM calls this at the beginning of each process of an engine, so
    it also prepares that process."""
    path = start_log_path()
    if path is None:
        return logging.NullHandler()
    prepare_engine_process()
    # A process that an engine starts later, when the file is removed, must not create the file again.
    return StartLogHandler(path) if os.path.exists(path) else logging.NullHandler()


def start_log_path() -> str | None:
    """Return the path of the file for the log of an engine's start. None: this is not a process of an engine."""
    starter, _, path = os.environ.get(START_LOG, "").partition(":")
    return path if path and int(starter) != os.getpid() else None


def prepare_engine_process() -> None:
    """Prepare this process of an engine: hide `FutureWarning`s of vLLM and torch, leave no semaphore behind if the
    process is killed, and end it without delay."""
    import tqdm

    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(vllm|torch)\.")
    # tqdm's own lock is a semaphore of the operating system. If the process is killed during its start, Python reports
    # the semaphore as leaked.
    tqdm.tqdm.set_lock(threading.RLock())
    multiprocessing.util.Finalize(None, _exit_now, exitpriority=-100)


def _exit_now() -> None:
    """End the process once vLLM and multiprocessing have cleaned up.

    The interpreter would free a million objects one by one, 2-4 s on a CPU. A traceback is not printed a second time:
    vLLM has logged it. On a GPU a process that did not fail ends in vLLM's own way.
    """
    from vllm.platforms import current_platform

    error = sys.exc_info()[1]
    failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
    if failed or current_platform.is_cpu():
        logging.shutdown()
        flush_standard_streams()
        os._exit(1 if failed else 0)


class StartLog:
    """The file for the log of one engine's start."""

    def __init__(self, side: str) -> None:
        file, self.path = tempfile.mkstemp(prefix=f"lmms-eval-mai-{side}-", suffix=".log")
        os.close(file)

    def environment(self) -> dict[str, str]:
        """Return the variables that tell the engine's processes about the file."""
        return {START_LOG: f"{os.getpid()}:{self.path}"}

    def text(self) -> str:
        """Return the last lines."""
        lines = Path(self.path).read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def root_cause(self) -> str | None:
        """Return the last line of the last traceback."""
        found = _ERROR_LINE.findall(Path(self.path).read_text(errors="replace"))
        return str(found[-1]) if found else None

    def remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)
