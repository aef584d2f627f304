"""An event loop in its own thread, for code that is not asynchronous."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from lmms_eval_mai.errors import EngineNotRunning, MaiError

R = TypeVar("R")

STOP_LIMIT_S = 10.0
"""Seconds that cancelled work may take to end. Then nobody waits for it any longer."""


class LoopThread:
    """An event loop that runs in its own thread until `close`.

    vLLM's engines must be called on one and the same loop. lmms-eval calls a model several times and synchronously; in
    a notebook, its thread already runs another loop.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mai-loop", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[Any]] = set()
        """The work that has begun and not ended."""
        self._futures: set[Future[Any]] = set()
        """The results of all work that has not ended."""

    @property
    def is_in_this_process(self) -> bool:
        """Return whether the thread is in this process. A child that was forked does not have it."""
        return os.getpid() == self._process

    def check_caller(self, waits: bool) -> None:
        """Refuse callers for whom a call would never end. `waits`: whether the caller waits for the result. Raises
        `MaiError`."""
        if not self.is_in_this_process:
            raise MaiError(
                "The engines run in the process from which this process was forked. Use them there, or create a model "
                "of its own in this process."
            )
        if waits and threading.current_thread() is self._thread:
            raise MaiError(
                "A function of add_done_callback must not wait for an answer, nor start or stop the engines: it runs "
                "in the thread that answers all questions. It may submit more questions."
            )

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run the coroutine to its end and return its result. On Ctrl-C the coroutine is cancelled, and this function
        waits up to 10 s for its end."""
        return self.start(coroutine)()

    def start(self, coroutine: Coroutine[Any, Any, R]) -> Callable[[], R]:
        """Start the coroutine and return a function that waits for its result as `run` does."""
        ended = threading.Event()
        future = self.submit(coroutine, ended)

        def wait() -> R:
            try:
                return future.result()
            except BaseException:
                if not future.done():
                    future.cancel()
                    ended.wait(timeout=STOP_LIMIT_S)
                raise

        return wait

    def submit(self, coroutine: Coroutine[Any, Any, R], ended: threading.Event | None = None) -> "Future[R]":
        """Start the coroutine and return its future. To cancel the future cancels the coroutine. `ended` is set at the
        end of the coroutine."""

        async def run_and_set() -> R:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await coroutine
            finally:
                self._tasks.discard(task)
                if ended is not None:
                    ended.set()

        future = asyncio.run_coroutine_threadsafe(run_and_set(), self._loop)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    async def cancel_work(self) -> None:
        """Cancel all work except the caller, and wait up to 10 s for its end. The other tasks of the loop go on."""
        running = self._tasks - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=STOP_LIMIT_S)

    def close(self) -> None:
        """Cancel the tasks that are left, and end the thread. Futures of work that ignores its cancellation raise
        `EngineNotRunning`."""
        asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for future in list(self._futures):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(EngineNotRunning("The engines were stopped, and this work did not end."))


async def _cancel_other_tasks() -> None:
    """Cancel all other tasks of the loop and wait until they end, but at most 1 s: a task may ignore its cancellation.

    A loop that is closed before its tasks end prints "Task was destroyed but it is pending".
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        ended, _ = await asyncio.wait(others, timeout=1)
        await asyncio.gather(*ended, return_exceptions=True)
