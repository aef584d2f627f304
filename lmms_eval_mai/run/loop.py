"""An event loop in its own thread, for code that is not asynchronous."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

CANCEL_LIMIT_S = 10.0
"""Seconds that cancelled work may take to end. Then nobody waits for it any longer."""


class LoopThread:
    """An event loop that runs in its own thread until `close`.

    vLLM's engines must be called on one and the same loop. lmms-eval calls a model several times and synchronously; in
    a notebook, its thread already runs another loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mai-loop", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, R]) -> "Future[R]":
        """Start a coroutine and return its future. To cancel the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end and return its result. On Ctrl-C it is cancelled."""
        return result_of(self.submit(coroutine))

    def close(self) -> None:
        """Cancel all work, wait for its end, and end the thread."""
        self.run(cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def result_of(future: "Future[R]") -> R:
    """Wait for a future and return its result. On Ctrl-C it is cancelled."""
    try:
        return future.result()
    except BaseException:
        future.cancel()  # has no effect if the future itself raised
        raise


async def cancel_others() -> None:
    """Cancel all other tasks of this event loop and wait up to 10 s for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        ended, _ = await asyncio.wait(others, timeout=CANCEL_LIMIT_S)
        await asyncio.gather(*ended, return_exceptions=True)  # or asyncio would report their errors as not retrieved
