"""An event loop in its own thread, for engines without `Engines`."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal

R = TypeVar("R")


class LoopThread:
    """An event loop that runs in its own thread until `close`."""

    def __init__(self) -> None:
        self._context = start_blocking_portal()
        self._portal = self._context.__enter__()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end and return its result."""
        return self._portal.call(lambda: coroutine)

    def close(self) -> None:
        """End the loop. Tasks that still run are cancelled."""
        self._context.__exit__(None, None, None)
