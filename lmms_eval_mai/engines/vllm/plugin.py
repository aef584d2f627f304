"""A plugin of vLLM (group `vllm.general_plugins`), which vLLM loads in every process of an engine.

It has no effect unless this package started the engine. In the engine's processes it writes vLLM's log to a file until
the engine stops, so that an error at the start can be shown, and it ends the process when the process that started the
engine is gone. vLLM's processes would keep their memory for ever, on a GPU too, after that process was killed.

vLLM loads it in other people's commands too, so it imports nothing but the standard library.
"""

import contextlib
import logging
import multiprocessing.util
import os
import select
import shutil
import signal
import sys
import threading
from pathlib import Path

VARIABLE = "LMMS_EVAL_MAI_ENGINES"
"""Environment variable of an engine's processes: the PID of the process that starts the engines, a colon, and the
folder of their logs. A log is named after its process: the PID of the parent, a hyphen, and its own PID."""


def starter() -> tuple[int, Path] | None:
    """Return the PID and the log folder of the process that started this process of an engine. None: this is no process
    of an engine."""
    pid, _, folder = os.environ.get(VARIABLE, "").partition(":")
    return None if not folder or int(pid) == os.getpid() else (int(pid), Path(folder))


def prepare_engine_process() -> None:
    """Prepare this process if it belongs to an engine that this package started."""
    found = starter()
    if found is None:
        return
    pid, folder = found
    _write_log(folder / f"{os.getppid()}-{os.getpid()}.log")
    threading.Thread(target=_end_with, args=(pid, folder), name="lmms-eval-mai-watch", daemon=True).start()
    multiprocessing.util.Finalize(None, _exit_now, exitpriority=-100)


def _write_log(path: Path) -> None:
    try:
        handler = logging.FileHandler(path)
    except OSError:  # the starter has ended, and its folder is removed
        return
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("vllm")
    for other in logger.handlers:  # the console keeps its level
        other.setLevel(max(other.level, logger.level))
    logger.addHandler(handler)
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))


def _end_with(pid: int, folder: Path) -> None:
    """Wait until the starter has ended. Then kill this process, and the coordinator of its replicas, in which vLLM
    loads no plugins."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        select.select([process], [], [])
    shutil.rmtree(folder, ignore_errors=True)
    for number in _processes_of(f"{VARIABLE}={pid}:".encode()):
        if number != os.getpid():
            _kill(number)
    _kill(os.getpid())


def _processes_of(variable: bytes) -> list[int]:
    """Return the processes whose environment had this variable when they began."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(entry.startswith(variable) for entry in (folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.kill(pid, signal.SIGKILL)


def _exit_now() -> None:
    """End this process once vLLM and multiprocessing have cleaned up.

    On a CPU the interpreter would free a million objects one by one, for 2 to 4 s. On a GPU a process that did not fail
    ends in vLLM's own way.
    """
    from vllm.platforms import current_platform

    error = sys.exc_info()[1]
    failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
    if failed or current_platform.is_cpu():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if failed else 0)
