"""The engines of a process: built in their wrappers, and started, called and stopped on one event loop.

The event loop runs in a thread of its own (`event_loop.py`). `Engines` knows no run: engines that stay up serve one run
after the other, each with its own journal and totals (`run.py`).
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from loguru import logger

from lmms_eval_mai.contract import SIDES, Engine, EngineConfig, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartingEngine, StartLock
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError
from lmms_eval_mai.paper.sample_run import gather_or_cancel
from lmms_eval_mai.run.at_exit import at_end_of_main_thread
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.measured_engine import MeasuredEngine

R = TypeVar("R")


class Engines:
    """The engines of one configuration. Every method may be called in any thread."""

    def __init__(self, config: Config, idle_check_s: float | None = None) -> None:
        """Build the engines and check that they can run. `idle_check_s`: as for `RestartingEngine`. Raises
        `ArgumentError`, `EngineUnavailable` or `EngineStartError`."""
        self.config = config
        self.of_side: dict[Side, Engine] = build_engines(config, idle_check_s)
        self._configs: Mapping[Side, EngineConfig] = {engine.side: engine for engine in config.engines()}
        self._up: set[Side] = set()
        self._loop: LoopThread | None = None
        """None: the engines are not running."""
        self._ending: LoopThread | None = None
        """The event loop that `stop` ends now. Functions of cancelled futures still run in its thread."""
        self._starting = asyncio.Lock()
        self._having_loop = threading.Lock()
        """Held while `_loop` is read or changed and work is given to it."""
        self._stopping = threading.Lock()
        """Held during `stop`. A start waits for its end, so that it does not start what `stop` is closing."""
        self._drop_stop_at_end: Callable[[], object] = lambda: None

    def start(self, sides: Collection[Side] = SIDES) -> None:
        """Start those of these engines that do not run yet, and wait until they are ready. Raises `EngineStartError`;
        the caller must then call `stop`."""
        self.run(self.start_on_loop(sides))

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end on the event loop, which is started if it does not run. On Ctrl-C the coroutine is
        cancelled, and this function waits up to 10 s for its end. Raises `EngineStartError` if `stop` has cancelled it,
        and `MaiError` for callers that would wait without end (`LoopThread.check_caller`)."""
        try:
            self.check_caller(waits=True)
            with self._stopping, self._having_loop:
                if self._loop is None:
                    self._loop, self._starting = LoopThread(), asyncio.Lock()
                    self._drop_stop_at_end = at_end_of_main_thread(self.stop)
                wait = self._loop.start(work)
        except BaseException:
            work.close()
            raise
        try:
            return wait()
        except CancelledError:
            raise EngineStartError("The engines were stopped while they started or answered.") from None

    def submit(self, work: Coroutine[Any, Any, R]) -> "Future[R]":
        """Start a coroutine on the event loop and return its future. To cancel the future cancels the coroutine, and
        `stop` cancels both. Raises `EngineNotRunning` before `start` and after `stop`."""
        try:
            self.check_caller(waits=False)
            with self._having_loop:
                if self._loop is None:
                    raise EngineNotRunning("The engines are not running. Start them first.")
                return self._loop.submit(work)
        except BaseException:
            work.close()
            raise

    async def start_on_loop(self, sides: Collection[Side]) -> None:
        """Do the work of `start`, for coroutines that `run` runs. If one engine fails, the other starts are
        cancelled."""
        async with self._starting:
            new = [side for side in self.of_side if side in sides and side not in self._up]
            await gather_or_cancel(_start(self.of_side[side], self._configs[side]) for side in new)
            self._up.update(new)

    def clear_caches(self) -> None:
        """Clear the caches of the engines that run, so that the next run is timed like a first one."""
        for side in self._up:
            self.run(_clear_caches(self.of_side[side]))

    def check_caller(self, waits: bool) -> None:
        """Refuse callers for whom a call would never end (`LoopThread.check_caller`). Raises `MaiError`."""
        for loop in (self._loop, self._ending):
            if loop is not None:
                loop.check_caller(waits)

    @property
    def is_in_this_process(self) -> bool:
        """Return whether these engines run in this process, if they run. A child that was forked can neither call nor
        stop the engines of its parent."""
        loop = self._loop
        return loop is None or loop.is_in_this_process

    def stop(self) -> None:
        """Cancel what runs, a start too, and stop the engines. They can be started again. Has no effect in a process
        that was forked."""
        if not self.is_in_this_process:
            return
        self.check_caller(waits=True)
        with self._stopping:
            with self._having_loop:
                loop, self._loop, self._ending = self._loop, None, self._loop
                self._drop_stop_at_end()
            if loop is None:
                return
            try:
                loop.run(self._close_all(loop))
            finally:
                self._up.clear()
                loop.close()
                self._ending = None

    async def _close_all(self, loop: LoopThread) -> None:
        await loop.cancel_work()  # an engine that is closed during a call would be restarted
        closing = (engine.close() for engine in self.of_side.values())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning(f"mai_cascade: an engine did not stop cleanly: {outcome}")


def build_engines(config: Config, idle_check_s: float | None = None) -> dict[Side, Engine]:
    """Return the engines by side, not started yet. `idle_check_s`: as for `RestartingEngine`. Raises `ArgumentError`,
    `EngineUnavailable` or `EngineStartError`.

    The wrappers of an engine, from the inside to the outside:

    1. Restart and `call_timeout`.
    2. The time at which a call started, and the log-probability of its answer.
    3. The calls of other runs, only in `reproduce`, and
    4. the journal. A run adds these two (`run.py`). A journaled call returns at once, even while the engine restarts. A
       new call is written once, however often it was retried.
    """
    starting = StartLock()
    engines: dict[Side, Engine] = {}
    for engine_config in config.engines():
        engine = build(engine_config, config.other(engine_config))
        engine.validate()
        # This process cannot restart a server; the openai engine waits for it.
        restarts = None if engine_config.engine == "openai" else config.engine_restarts
        lock = starting if engine.starts_alone() else None
        engines[engine_config.side] = MeasuredEngine(
            RestartingEngine(engine, restarts, config.call_timeout, lock, idle_check_s=idle_check_s)
        )
    return engines


async def _clear_caches(engine: Engine) -> None:
    """Clear the caches of an engine that runs. An engine that crashed has none; its next call restarts it."""
    try:
        await engine.clear_caches()
    except Exception as error:
        logger.debug(f"mai_cascade: the caches of the {engine.side} engine are not cleared ({error}).")


async def _start(engine: Engine, config: EngineConfig) -> None:
    started_at = time.perf_counter()
    logger.info(f"mai_cascade: starting {config.side}={config.model} with {config.engine}: {engine.describe()}.")
    await engine.start()
    logger.info(f"mai_cascade: {config.side} is ready after {time.perf_counter() - started_at:.0f} s.")
