"""An event loop with simulated time: it does not sleep, and its clock jumps to the next timer instead.

So scripted engines take no real time, and a run of days is simulated in minutes. Timeouts and waits of asyncio follow
the simulated clock too. The work of threads (to open a sample, to write the journal) takes no simulated time: while a
thread works, the clock stands still.
"""

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator
from typing import Any

ROUNDING = 1 + 1e-15
"""The clock jumps a few units of its last digit further: asyncio runs a timer only if the clock is after it."""


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the clock of the loop instead of waiting for a timer."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.loop.busy_threads:
            return super().select(None)  # the thread wakes the loop
        found = super().select(0)
        if not found:
            self.loop.now = (self.loop.now + timeout) * ROUNDING
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock begins at 0 and jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy_threads = 0
        """Calls of `run_in_executor` that have not ended."""
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the simulated seconds."""
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Run a function in a thread, as usual. The clock stands still until it returns."""
        future = super().run_in_executor(executor, func, *args)
        self.busy_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: "asyncio.Future[Any]") -> None:
        self.busy_threads -= 1


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualTimeLoop()


@contextlib.contextmanager
def virtual_time() -> Iterator[None]:
    """Give simulated time to all event loops that are created in this block, also to that of a run."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)
