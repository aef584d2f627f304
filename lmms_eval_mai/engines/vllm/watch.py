"""vLLM's side of this package: a plugin (entry point `vllm.general_plugins`), which vLLM loads in every process of an
engine.

It has no effect without the variable `VARIABLE`, which `processes.py` sets inside the processes of this package's
engines only. vLLM loads it in other people's commands too, so it imports nothing but the standard library.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from multiprocessing.util import Finalize

VARIABLE = "LMMS_EVAL_MAI_PARENT"
"""The PID of the process that started this one, and then those of other processes that must end with this one."""


def prepare_engine_process() -> None:
    """End this process when the process that started it is gone: vLLM's processes would keep their memory for ever, on
    a GPU too, after that process was killed."""
    if VARIABLE not in os.environ:
        return
    try:
        processes = [os.pidfd_open(int(pid)) for pid in os.environ[VARIABLE].split()]
    except ProcessLookupError:  # it has ended already
        os._exit(1)
    threading.Thread(target=_end_with, args=processes, name="lmms-eval-mai-watch", daemon=True).start()
    Finalize(None, _exit_now, exitpriority=-100)


def _end_with(parent: int, *others: int) -> None:
    select.select([parent], [], [])
    for process in others:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _exit_now() -> None:
    """End this process if it did not fail, after vLLM and multiprocessing have cleaned up. On a CPU the interpreter
    would free a million objects one by one, for 2 to 4 s. On a GPU a process ends in vLLM's own way."""
    from vllm.platforms import current_platform

    error = sys.exc_info()[1]
    if current_platform.is_cpu() and (error is None or (isinstance(error, SystemExit) and not error.code)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
