"""Waiting for calls with asyncio, so that no cancellation is lost and no task is left behind."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

R = TypeVar("R")


async def wait_for(seconds: float, awaitable: Awaitable[R]) -> R:
    """Return the result of `awaitable`. After `seconds`, cancel it, wait for its end and raise `TimeoutError`.

    `asyncio.wait_for` does the same, but before Python 3.12 it loses its own cancellation if that arrives at the moment
    the coroutine ends (CPython issue #86296).
    """
    async with asyncio.timeout(seconds):
        return await awaitable


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
