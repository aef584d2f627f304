"""Runs many samples at the same time. A bounded number of samples is open, and none waits for another.

Knows nothing of lmms-eval: it takes a function that opens sample number i and a function that runs it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lmms_eval_mai.errors import MaiError, SampleError

S = TypeVar("S")
R = TypeVar("R")


async def run_samples(
    count: int,
    open_sample: Callable[[int], S],
    run: Callable[[S], Awaitable[R]],
    report: Callable[[int, R | SampleError], Awaitable[bool]],
    max_open: int,
) -> None:
    """Open samples 0..count-1 in threads, run up to `max_open` of them at a time, and report each result.

    A sample is opened only when there is space for it, and dropped when it is done: memory does not grow with `count`.
    A `SampleError` is reported like a result. The run stops early if `report` returns False or if any other `MaiError`
    is raised. Then no further sample is opened, the open samples are finished, and the first such `MaiError` is raised.
    Any other exception, including cancellation, stops all samples at once.
    """
    loop = asyncio.get_running_loop()
    waiting = iter(range(count))
    stop = False
    first_error: MaiError | None = None

    async def worker(pool: ThreadPoolExecutor) -> None:
        nonlocal stop, first_error
        for index in waiting:
            if stop:
                return
            result: R | SampleError
            try:
                try:
                    result = await run(await loop.run_in_executor(pool, open_sample, index))
                except SampleError as error:
                    result = error
                if not await report(index, result):
                    stop = True
            except MaiError as error:
                stop = True
                first_error = first_error or error

    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "mai-open")
    workers = [asyncio.create_task(worker(pool)) for _ in range(min(max_open, count))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a document that hangs must not hang Ctrl-C
    if first_error is not None:
        raise first_error
