"""One start of a vLLM engine: it can be aborted, and two engines can start at the same time."""

import asyncio
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.vllm.configuration import Configuration
from lmms_eval_mai.engines.vllm.errors import start_error
from lmms_eval_mai.engines.vllm.logs import StartLog, hide_harmless_warnings, is_quiet
from lmms_eval_mai.engines.vllm.metrics import prometheus_logger
from lmms_eval_mai.engines.vllm.placement import ChildEnvironment
from lmms_eval_mai.engines.vllm.processes import EngineProcesses, without_interrupts
from lmms_eval_mai.engines.vllm.renderer import Renderer
from lmms_eval_mai.engines.vllm.renderer_processes import started_ahead
from lmms_eval_mai.engines.vllm.renderer_sharing import release, shared_renderer
from lmms_eval_mai.engines.vllm.watchdog import WATCHDOG

POLL_S = 0.05
"""Seconds between two checks for new processes of the engine."""
WATCH_S = 0.5
"""Seconds between two checks for workers of these processes. The watchdog must watch them too."""


@dataclass(frozen=True)
class Started:
    """An engine that has started, until it is stopped."""

    llm: Any
    """The `AsyncLLM`."""
    renderer: Renderer
    processes: EngineProcesses

    def stop(self) -> None:
        """Stop the engine. Blocks until its processes have ended."""
        try:
            self.processes.shut_down(self.llm)
        finally:
            release(self.renderer)


class Start:
    """Builds the engine in a thread, because that takes half a minute and blocks."""

    def __init__(self, config: EngineConfig, configuration: Configuration) -> None:
        self._config = config
        self._configuration = configuration
        self._environment: ChildEnvironment | None = None
        self._processes: EngineProcesses | None = None
        self._building = asyncio.ensure_future(asyncio.to_thread(self._build))

    async def finish(self) -> Started:
        """Return the engine. Raises `EngineStartError`.

        If the caller is cancelled, the start continues until `abort` is called.
        """
        while not self._building.done():
            released = self._release_environment()
            await asyncio.wait({self._building}, timeout=WATCH_S if released else POLL_S)
            self._watch()
        self._watch()
        return self._building.result()

    async def abort(self) -> None:
        """Kill the processes of the start, so that it ends now and not after minutes. If the start had already
        succeeded, stop the engine."""
        while not self._building.done():
            self._release_environment()
            if self._processes is not None:
                self._processes.kill()
            await asyncio.wait({self._building}, timeout=0.2)
        if not self._building.cancelled() and not self._building.exception():
            await asyncio.to_thread(self._building.result().stop)
        elif self._processes is not None:
            await asyncio.to_thread(self._processes.wait_for_end)

    def _watch(self) -> None:
        if self._processes is not None:
            WATCHDOG.watch(process.pid for process in self._processes.running())

    def _release_environment(self) -> bool:
        """Restore the environment if all processes run, so that the other engine can start its processes. Returns
        whether the environment is restored."""
        processes, environment = self._processes, self._environment
        if processes is None or environment is None or not processes.all_started():
            return False
        processes.stop_collecting()
        environment.restore()
        return True

    def _build(self) -> Started:
        with started_ahead(self._configuration.renderer_processes):
            return self._build_both()

    def _build_both(self) -> Started:
        from vllm.v1.engine.async_llm import AsyncLLM

        configuration, log = self._configuration, StartLog(self._config.side)
        core_count = configuration.vllm_config.parallel_config.data_parallel_size_local
        try:
            variables = {**configuration.environment, **log.environment()}
            hide = hide_harmless_warnings if is_quiet(self._config.arguments) else None
            with without_interrupts(), ChildEnvironment(variables, first_call=hide) as self._environment:
                self._processes = EngineProcesses(core_count)
                try:
                    # With statistics on, every output has the times at which it was queued and scheduled, and of its
                    # first and last token.
                    llm = AsyncLLM.from_vllm_config(
                        configuration.vllm_config, disable_log_stats=False, stat_loggers=[prometheus_logger()]
                    )
                finally:
                    self._processes.stop_collecting()
            try:
                renderer = shared_renderer(
                    llm.vllm_config, configuration.image_cache_gib, configuration.renderer_processes
                )
                return Started(llm, renderer, self._processes)
            except Exception:
                self._processes.shut_down(llm)
                raise
        except Exception as error:
            raise start_error(self._config, error, log) from error
        finally:
            log.remove()
