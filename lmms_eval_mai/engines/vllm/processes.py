"""Builds the `AsyncLLM` of an engine, and stops its processes, also if the process that started them is killed.

vLLM pickles an engine's configuration for each process of the engine. Two values in it are replaced by `Marked` and
`MarkedSize`. So this module learns exactly which processes belong to the engine, and its code runs in each of them when
the configuration is unpickled. Each gets a thread that ends it when the process that started it is gone, and a pipe for
the error that ends it. The user's own processes are not touched.
"""

import functools
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from multiprocessing.util import Finalize
from typing import Any

from lmms_eval_mai.redaction import error_text

STOP_LIMIT_S = 20.0
"""Seconds in which vLLM's core must end by itself. It needs one, and several on a machine with too much other work."""
END_LIMIT_S = 10.0
"""Seconds in which a killed process must end. It frees its memory first."""


class Marked(dict[str, Any]):
    """vLLM's `additional_config`. Wherever it is pickled for a new process, it records and marks this process."""

    def __init__(self, items: Any, errors: Connection) -> None:
        super().__init__(items)
        self.errors = errors
        self.started: list[Any] = []
        """The processes that this process has started: `Popen` objects of multiprocessing, without a `pid` at first."""

    def __reduce__(self) -> tuple[Any, ...]:
        process = get_spawning_popen()
        if process is None:  # it is copied, or stored in a file
            return dict, (dict(self),)
        self.started.append(process)
        return _marked, (dict(self), os.getpid(), DupFd(self.errors.fileno()))

    def send_error(self, record: logging.LogRecord) -> bool:
        """Send the error with which vLLM ends this process, unless it only points at that of another process."""
        error = record.exc_info and record.exc_info[1]
        if error and str(record.msg).startswith(("EngineCore", "WorkerProc")) and "root cause" not in str(error):
            self.errors.send(f"{type(error).__name__}: {error_text(error)}")
        return True


class MarkedSize(int):
    """vLLM's `data_parallel_size`. Nothing else in the configuration reaches the process that coordinates replicas."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, (int(self),)) if get_spawning_popen() is None else (_size, (int(self), os.getpid()))


def _marked(items: dict[str, Any], parent: int, errors: Any) -> Marked:
    """Return the dictionary in the new process, and mark this process."""
    _end_with(parent)
    marked = Marked(items, Connection(errors.detach(), readable=False))
    for module in ("engine.core", "executor.multiproc_executor"):
        logging.getLogger(f"vllm.v1.{module}").addFilter(marked.send_error)  # vLLM removes handlers
    Finalize(None, _exit_now, exitpriority=-100)
    return marked


def _size(size: int, parent: int) -> int:
    _end_with(parent)
    return size


@functools.cache
def _end_with(parent: int) -> None:
    """End this process when the process that started it is gone: vLLM's processes would keep their memory for ever, on
    a GPU too, after that process was killed."""

    def watch() -> None:
        with suppress(ProcessLookupError):  # it has ended already
            select.select([os.pidfd_open(parent)], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="lmms-eval-mai-watch", daemon=True).start()


def _exit_now() -> None:
    """End this process if it did not fail, after vLLM and multiprocessing have cleaned up. On a CPU the interpreter
    would free a million objects one by one, for 2 to 4 s. On a GPU a process ends in vLLM's own way."""
    from vllm.platforms import current_platform

    error = sys.exc_info()[1]
    if current_platform.is_cpu() and (error is None or (isinstance(error, SystemExit) and not error.code)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class Processes:
    """The processes of one start of an engine: its cores. The workers of a core are the core's own children.

    The `AsyncLLM` is built in a thread that blocks Ctrl-C for the processes that it starts: a terminal sends Ctrl-C to
    all processes at once, and this process stops the engine.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._errors, sender = multiprocessing.Pipe(duplex=False)
        self._last_error = ""
        self._marked = vllm_config.additional_config = Marked(vllm_config.additional_config, sender)
        parallel = vllm_config.parallel_config
        parallel.data_parallel_size = MarkedSize(parallel.data_parallel_size)
        self._expected: int = parallel.data_parallel_size_local
        resource_tracker.ensure_running()  # multiprocessing starts it with the first process, and then unblocks SIGINT
        thread = ThreadPoolExecutor(1, "vllm-start", signal.pthread_sigmask, (signal.SIG_BLOCK, {signal.SIGINT}))
        self.llm: Future[Any] = thread.submit(_async_llm, vllm_config)
        thread.shutdown(wait=False)

    def _cores(self) -> list[Any]:
        return [process for process in self._marked.started if hasattr(process, "pid")]

    def wait_until_spawned(self) -> None:
        """Wait until the cores run, or the start has failed. vLLM does not read the environment any more."""
        while not self.llm.done() and len(self._cores()) < self._expected:
            time.sleep(0.01)

    def last_error(self) -> str:
        """Return the last error that ended a process. Empty: there is none, as after SIGKILL."""
        while self._errors.poll():
            self._last_error = self._errors.recv()
        return self._last_error

    def stop(self) -> None:
        """Stop the engine. Blocks until its cores have ended: vLLM does not wait for a process that it kills, and its
        GPU memory is free only then. An engine that is still starting is killed, so that this takes no minutes."""
        while not self.llm.done():
            for core in self._cores():
                core.kill()
            time.sleep(0.1)
        try:
            if self.llm.exception() is None:
                self.llm.result().shutdown(timeout=STOP_LIMIT_S)
        finally:
            for core in self._cores():
                if core.wait(END_LIMIT_S) is None:  # vLLM's `shutdown` failed
                    core.kill()
                    core.wait(END_LIMIT_S)


def _async_llm(vllm_config: Any) -> Any:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class NoPrometheus(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types here
        """Of two engines that start at the same time, both may add a metric to the registry, and one start fails. A new
        logger also removes the metrics of the user's own engines."""

        def __init__(self, *arguments: Any, **named: Any) -> None: ...

        record = record_admission_rejection = log_engine_initialized = __init__

    # With statistics on, every output has the times at which it was queued and scheduled, and of its first and last
    # token.
    return AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=False, stat_loggers=[NoPrometheus])
