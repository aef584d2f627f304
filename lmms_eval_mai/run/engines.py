"""The engines of a run: built, started, called and stopped once, on one event loop, which has a thread of its own.

vLLM's engines must be called on one and the same loop. lmms-eval calls a model several times and synchronously; in a
notebook, its thread already runs another loop.

`Engines` knows no evaluation: engines that stay up serve one evaluation after the other (`evaluation.py`).
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from loguru import logger

from lmms_eval_mai.contract import SIDES, Engine, EngineConfig, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartedEngine
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError
from lmms_eval_mai.method.calls import gather_or_cancel
from lmms_eval_mai.run.config import Config

R = TypeVar("R")

CANCEL_LIMIT_S = 10.0
"""Seconds that cancelled work may take to end. Then nobody waits for it any longer."""


class Engines:
    """The engines of one configuration. Every method may be called in any thread; `run` runs `start`."""

    def __init__(self, config: Config, make: Callable[[EngineConfig, EngineConfig | None], Engine] = build) -> None:
        """Build the engines and check that they can run. `make`: builds an engine, as `engines.build.build` does.
        Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`."""
        self.config = config
        self.models: dict[Side, RestartedEngine] = {}
        for engine in config.engines():
            restarts = None if engine.is_endpoint else config.engine_restarts
            built = make(engine, config.other(engine))
            self.models[engine.side] = RestartedEngine(built, restarts, config.call_timeout)
        self._up: set[Side] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """None: nothing was started yet."""
        self._stopping: Future[None] | None = None
        """The stop. None: nobody has stopped the engines."""
        self._starting = asyncio.Lock()
        self._lock = threading.Lock()
        """Held while work is given to the loop: `stop` cancels all work on it."""

    @property
    def stopped(self) -> bool:
        """Whether they were stopped. They are not started again."""
        return self._stopping is not None

    async def start(self, sides: Collection[Side] = SIDES) -> None:
        """Start those of these engines that do not run yet, and wait until they are ready. On a GPU that both share,
        they start one after the other, else at the same time. If one engine fails, the other starts are cancelled.
        Raises `EngineStartError`; the caller must then call `stop`."""
        async with self._starting:
            new = [side for side in self.models if side in sides and side not in self._up]
            if any(self.models[side].engine.shares_gpu for side in new):
                for side in new:  # vLLM measures the free memory, which no other engine may change then
                    await self._start(side)
            else:
                await gather_or_cancel(map(self._start, new))

    async def _start(self, side: Side) -> None:
        model, began = self.models[side], time.perf_counter()
        config: EngineConfig = getattr(self.config, side)
        described = model.engine.description
        logger.info(f"mai_cascade: starting {side}={config.model} with {config.engine}: {described}.")
        await model.start()
        self._up.add(side)
        chosen = "" if model.engine.description == described else f": {model.engine.description}"
        logger.info(f"mai_cascade: {side} is ready after {time.perf_counter() - began:.0f} s{chosen}.")

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end on the event loop, which is started if it does not run. Raises
        `EngineStartError` if the engines were stopped before or meanwhile."""
        stopped = EngineStartError("The engines were stopped. Make a new object to start them again.")
        with self._lock:
            if self.stopped:
                work.close()
                raise stopped
            if self._loop is None:
                self._loop = _started_loop(self)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return result_of(future)
        except CancelledError:
            raise stopped from None

    def submit(self, work: Coroutine[Any, Any, R]) -> "Future[R]":
        """Start a coroutine on the event loop and return its future. To cancel the future cancels the coroutine, and
        `stop` cancels both. Raises `EngineNotRunning` before `start` and after `stop`."""
        with self._lock:
            if self._loop is None or self._stopping is not None:
                work.close()
                raise EngineNotRunning(
                    "The engines are not running: ask inside `async with Cascade(...)` or `with Cascade(...)`, or call "
                    "start() first."
                )
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def clear_caches(self) -> None:
        """Clear the caches of the engines that run, so that the next evaluation is timed like a first one."""
        for side in self._up:
            self.run(self.models[side].engine.clear_caches())

    def stop(self) -> None:
        """Cancel what runs, a start too, and stop the engines. Returns when they have ended, also if another thread
        has stopped them."""
        with self._lock:
            if self._stopping is None:
                if (loop := self._loop) is None:
                    self._stopping = Future()
                    self._stopping.set_result(None)
                else:
                    self._stopping = asyncio.run_coroutine_threadsafe(self._close_all(), loop)
                    self._stopping.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        self._stopping.result()

    async def _close_all(self) -> None:
        await _cancel_others()  # an engine that is closed during a call would be restarted
        closing = (model.close() for model in self.models.values())
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning(f"mai_cascade: an engine did not stop cleanly: {outcome}")
        await _cancel_others()


def _started_loop(engines: Engines) -> asyncio.AbstractEventLoop:
    """Start a loop in a thread of its own, and let the end of this process stop the engines. They need threads to stop,
    and in functions of `atexit` Python starts no more threads. A child that this process forks must not stop them."""
    loop, process = asyncio.new_event_loop(), os.getpid()
    threading.Thread(target=_run_loop, args=[loop], name="mai-loop", daemon=True).start()
    # A private function, which concurrent.futures uses for the same purpose since Python 3.9.
    threading._register_atexit(lambda: engines.stop() if os.getpid() == process else None)  # type: ignore[attr-defined]
    return loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def result_of(future: "Future[R]") -> R:
    """Wait for a future and return its result. On Ctrl-C it is cancelled."""
    try:
        return future.result()
    except BaseException:
        future.cancel()  # has no effect if the future itself raised
        raise


async def _cancel_others() -> None:
    """Cancel all other tasks of this event loop and wait up to 10 s for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        ended, _ = await asyncio.wait(others, timeout=CANCEL_LIMIT_S)
        await asyncio.gather(*ended, return_exceptions=True)  # or asyncio would report their errors as not retrieved
