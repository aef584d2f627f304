"""One start of a vLLM engine, and its stop. Two engines can start at the same time, and a start can be aborted."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm import environment, internals, plugin
from lmms_eval_mai.engines.vllm.configuration import Configuration
from lmms_eval_mai.engines.vllm.errors import MISSING_GUARD, start_error
from lmms_eval_mai.engines.vllm.renderer import Renderer, shared_renderer
from lmms_eval_mai.errors import EngineUnavailable

STOP_LIMIT_S = 20.0
"""Seconds in which vLLM's core must end by itself. It needs one, and several on a machine with too much other work."""
END_LIMIT_S = 10.0
"""Seconds in which processes must end, and then killed processes. They free their memory first."""
TAIL_LINES = 15
ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+", re.MULTILINE)

_of_running_engines: set[int] = set()
"""The PIDs of the processes of engines that have started. An aborted start must not kill them."""


@dataclass(frozen=True)
class Started:
    """An engine that has started, until it is stopped."""

    llm: Any
    """The `AsyncLLM`."""
    renderer: Renderer
    processes: frozenset[psutil.Process]
    """Its cores and their workers. A core that has crashed does not name its workers any more."""

    def stop(self) -> None:
        """Stop the engine. Blocks until its processes have ended."""
        try:
            self.llm.shutdown(timeout=STOP_LIMIT_S)
        finally:
            _wait_for_end(self.processes)
            _of_running_engines.difference_update(process.pid for process in self.processes)


class Start:
    """Builds the engine in a thread, because that takes half a minute and blocks."""

    def __init__(self, config: EngineConfig, configuration: Configuration) -> None:
        self._config = config
        self._configuration = configuration
        self._building = asyncio.ensure_future(asyncio.to_thread(self._build))

    async def finish(self) -> Started:
        """Return the engine. Raises `EngineStartError`.

        If the caller is cancelled, the start continues until `abort` is called.
        """
        return await asyncio.shield(self._building)

    async def abort(self) -> None:
        """Kill the processes of all engines that are starting, so that this start ends now and not after minutes. If it
        had already succeeded, stop the engine."""
        killed: set[psutil.Process] = set()
        while not self._building.done():
            killed |= _kill(_with_children(internals.started_by_vllm()), spare=_of_running_engines)
            await asyncio.wait({self._building}, timeout=0.2)
        if not self._building.cancelled() and not self._building.exception():
            await asyncio.to_thread(self._building.result().stop)
        await asyncio.to_thread(_wait_for_end, killed)

    def _build(self) -> Started:
        from vllm.v1.engine.async_llm import AsyncLLM

        configuration, began_at = self._configuration, time.time()
        try:
            with without_interrupts(), environment.engine_environment(configuration.environment):
                # With statistics on, every output has the times at which it was queued and scheduled, and of its first
                # and last token.
                llm = AsyncLLM.from_vllm_config(
                    configuration.vllm_config,
                    disable_log_stats=False,
                    stat_loggers=[internals.one_prometheus_logger_at_a_time()],
                )
                processes = frozenset(_with_children(internals.processes_of(llm)))
                _of_running_engines.update(process.pid for process in processes)
                try:
                    renderer = shared_renderer(llm.vllm_config, self._config, configuration.image_cache_gib)
                    return Started(llm, renderer, processes)
                except Exception:
                    Started(llm, None, processes).stop()  # type: ignore[arg-type]  # it has no renderer
                    raise
        except Exception as error:
            text = start_log(self._config.model, began_at)
            causes = ERROR_LINE.findall(text)
            tail = "\n".join(text.splitlines()[-TAIL_LINES:])
            raise start_error(self._config, error, causes[-1] if causes else None, tail) from error


def _with_children(processes: Iterable[BaseProcess]) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            core = psutil.Process(process.pid)
            found |= {core, *core.children(recursive=True)}
    return found


def _kill(processes: Iterable[psutil.Process], spare: Iterable[int] = ()) -> set[psutil.Process]:
    """Kill these processes. Returns those that it killed."""
    killed = {process for process in processes if process.pid not in spare}
    for process in killed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return killed


def _wait_for_end(processes: Collection[psutil.Process]) -> None:
    """Wait until these processes have ended, and kill those that do not end.

    vLLM does not wait for the end of a process that it kills, and workers of a core that crashed end a little later.
    """
    deadline = time.monotonic() + END_LIMIT_S
    while (left := [process for process in processes if _is_alive(process)]) and (
        time.monotonic() < deadline + END_LIMIT_S
    ):
        if time.monotonic() > deadline:
            _kill(left)
        time.sleep(0.01)
    for process in processes:  # Intel's OpenMP library marks its processes with these files
        Path(f"/dev/shm/__KMP_REGISTERED_LIB_{process.pid}_{os.getuid()}").unlink(missing_ok=True)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


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


def start_log(model: str, since: float) -> str:
    """Return the log of a failed start: of the workers of the core that has this model, and of this core. Empty if
    there is none.

    `since`: when the start began, in seconds since 1970. The logs of engines that run do not count.
    """
    files = [file for file in environment.log_folder().glob("*.log") if file.stat().st_mtime >= since]
    texts = {file.stem.split("-")[1]: file.read_text(errors="replace") for file in sorted(files)}
    # vLLM's first line in a core's log is "Initializing a V1 LLM engine (...) with config: model='...', ...". A script
    # without a guard has no such line.
    about_model = (f"model={model!r}", MISSING_GUARD)
    cores = [
        pid
        for pid, text in texts.items()
        if int(pid) not in _of_running_engines and any(words in text for words in about_model)
    ]
    workers = sorted(file.stem.split("-")[1] for file in files if file.stem.split("-")[0] in cores)
    return "".join(texts[pid] for pid in [*workers, *cores])


def exit_if_script_runs_again() -> None:
    """End this process if it is an engine's process that is still importing the user's script. Without this check, vLLM
    would fail much later with "Engine core initialization failed"."""
    found = plugin.starter()
    if found is None:
        return
    try:
        (found[1] / f"{os.getppid()}-{os.getpid()}.log").write_text(f"{MISSING_GUARD}\n")
    except OSError:
        print(MISSING_GUARD, file=sys.stderr, flush=True)
    os._exit(1)


def refuse_script_from_stdin() -> None:
    """Refuse to start engines if Python reads the script from standard input, as in `python - <<EOF`. The start would
    fail late, with an error that names no cause. Raises `EngineUnavailable`.

    Interactive Python, notebooks and `python -c` have no `__file__`: new processes then run nothing again.
    """
    if getattr(sys.modules.get("__main__"), "__file__", None) == "<stdin>":
        raise EngineUnavailable(
            "vLLM starts its engines as new processes, which run the script again. Python reads this script from "
            "standard input, so they cannot. Save it as a file that starts the engines under "
            '`if __name__ == "__main__":`, and run this file.'
        )
