"""Objects of asyncio in engines that are stopped and started again."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Holds an object of asyncio, such as a lock, and replaces it when another event loop runs.

    When a task has waited for such an object, only the event loop of this task may use it. Engines that are started
    again after their stop run on a new event loop.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._held: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        """Return the object of the event loop that runs."""
        loop = asyncio.get_running_loop()
        if self._held is None or self._held[0] is not loop:
            self._held = loop, self._create()
        return self._held[1]
