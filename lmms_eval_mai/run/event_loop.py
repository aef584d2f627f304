"""An event loop in its own thread, for code that is not asynchronous."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from lmms_eval_mai.errors import MaiError

R = TypeVar("R")


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
        ended = threading.Event()

        async def run_and_set() -> R:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run_and_set(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(timeout=10)
            raise

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> "Future[R]":
        """Start the coroutine and return its future. To cancel the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel the tasks that are left, and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


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


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all coroutines at the same time and return their results.

    If one fails, or the caller is cancelled, cancel the others, wait for their end and raise the first error.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
