"""Running coroutines at the same time, so that no task is left behind."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

R = TypeVar("R")


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
