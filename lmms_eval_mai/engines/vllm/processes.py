"""Finds and kills the processes of a vLLM engine, and ends a process of it that would run the user's script again."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from lmms_eval_mai.engines.vllm.internals import imports_main_script
from lmms_eval_mai.engines.vllm.logs import start_log_path
from lmms_eval_mai.engines.vllm.openmp import remove_registration

CORE = "EngineCore"
COORDINATOR = "VLLM_DP_Coordinator"
"""Beginnings of the names of vLLM's processes. The workers of a core are the core's own children."""

STOP_LIMIT_S = 20.0
"""Seconds in which vLLM's core must end by itself. It needs one, and several on a machine with too much other work."""
END_LIMIT_S = 10.0
"""Seconds in which processes must end, and then killed processes. They free their memory first."""
END_POLL_S = 0.01


class EngineProcesses:
    """The processes that one engine started. Other processes, the user's and the other engine's, never belong to them:
    create this just before the engine starts its processes, while no other engine may start any."""

    def __init__(self, core_count: int) -> None:
        self._core_count = core_count
        self._earlier = {process.pid for process in _started_by_vllm()}
        self._found: list[BaseProcess] | None = None
        self._seen: set[psutil.Process] = set()
        """All cores and workers that were ever found. Workers are found through their core only while it is alive."""

    def all_started(self) -> bool:
        """Return whether all cores run their own program. From then on their environment is fixed."""
        return self._found is not None or sum(one.name.startswith(CORE) for one in self._current()) >= self._core_count

    def stop_collecting(self) -> None:
        """Ignore all processes that start from now on, because they belong to another engine."""
        if self._found is None:
            self._found = self._current()

    def running(self) -> set[psutil.Process]:
        """Return the cores and their workers that run now."""
        found: set[psutil.Process] = set()
        for process in self._current():
            with contextlib.suppress(psutil.Error):
                core = psutil.Process(process.pid)
                found |= {core, *core.children(recursive=True)}
        self._seen = self._seen | found  # a new set, because another thread may read the old one
        return found

    def kill(self) -> None:
        """Kill the cores and their workers."""
        _kill(self.running())

    def shut_down(self, llm: Any) -> None:
        """Stop an `AsyncLLM` and wait until its processes have ended."""
        self.running()
        try:
            llm.shutdown(timeout=STOP_LIMIT_S)
        finally:
            self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait until all processes that were seen running have ended, and kill those that do not end.

        vLLM kills a core that does not end in time, and does not wait for the end of a killed process. Workers of a
        core that crashed end by themselves a little later.
        """
        deadline = time.monotonic() + END_LIMIT_S
        while (left := [one for one in self._seen if _is_alive(one)]) and time.monotonic() < deadline + END_LIMIT_S:
            if time.monotonic() > deadline:
                _kill(left)
            time.sleep(END_POLL_S)
        for process in self._seen:
            remove_registration(process.pid)

    def _current(self) -> list[BaseProcess]:
        if self._found is not None:
            return [process for process in self._found if process.is_alive()]
        return [process for process in _started_by_vllm() if process.pid not in self._earlier]


def _started_by_vllm() -> list[BaseProcess]:
    """Return the processes that Python's multiprocessing started under a name of vLLM. A process is in this list only
    after it has its own program and environment."""
    return [process for process in multiprocessing.active_children() if process.name.startswith((CORE, COORDINATOR))]


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Block Ctrl-C for processes that start inside the block.

    A terminal sends Ctrl-C to all processes at once. This process stops the engines, and an engine that is still
    importing would print a traceback. Only the calling thread and the processes that it starts are changed.
    """
    resource_tracker.ensure_running()  # multiprocessing starts it with the first process, and then unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


MISSING_GUARD = (
    'The script starts the engines without `if __name__ == "__main__":`. vLLM starts its engines as new processes, '
    "and each of them runs the script again from the top. Put the call under that line."
)


def exit_if_script_runs_again() -> None:
    """End this process if it is an engine's process that is still importing the user's script. Without this check, vLLM
    would fail much later with "Engine core initialization failed"."""
    if not imports_main_script():
        return
    if path := start_log_path():
        with open(path, "a") as log:
            log.write(f"{MISSING_GUARD}\n")
    else:
        print(MISSING_GUARD, file=sys.stderr, flush=True)
    os._exit(1)
