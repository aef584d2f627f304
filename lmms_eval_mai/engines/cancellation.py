"""Waiting with asyncio where the standard functions lose a cancellation or leave tasks behind."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

R = TypeVar("R")


async def wait_for(seconds: float, awaitable: Awaitable[R]) -> R:
    """Return the result of `awaitable`. After `seconds`, cancel it, wait for its end and raise `asyncio.TimeoutError`.

    `asyncio.wait_for` does the same, but before Python 3.12 it loses its own cancellation if that arrives at the moment
    the coroutine ends (CPython issue #86296). A worker of the scheduler that loses Ctrl-C in this way would continue
    with all remaining samples.
    """
    task = asyncio.ensure_future(awaitable)
    done: set[asyncio.Future[R]] = set()
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not done:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if not done:
        raise TimeoutError
    return task.result()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all coroutines at the same time and return their results.

    If one fails, or the caller is cancelled, cancel the others, wait for their end and raise the error.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def shielded(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine to its end even if the caller is cancelled; then raise the cancellation."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
