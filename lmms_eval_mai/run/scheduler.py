"""Runs many samples at the same time. A bounded number of samples is open, and none waits for another.

To open a sample means to load its document and to decode its images. The sample is open until its run ends.
"""

import asyncio
import contextlib
import gc
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.method.calls import gather_or_cancel

NEW_OBJECTS = 10_000
"""New objects after which garbage is collected while samples run. Python's default is 700, which are two samples."""

S = TypeVar("S")
R = TypeVar("R")


async def run_samples(
    order: Sequence[int],
    open_sample: Callable[[int], S],
    run: Callable[[S], Awaitable[R]],
    report: Callable[[int, R | SampleError], Awaitable[bool]],
    max_open: int,
) -> None:
    """Open the samples with these indices in threads and in this order, run up to `max_open` of them at a time, and
    report each result.

    A sample is opened only when there is space for it, and dropped when it is done: memory does not grow with them.
    A `SampleError` is reported like a result. The run stops early if `report` returns False or if any other `MaiError`
    is raised. Then no further sample is opened, the open samples are finished, and the first such `MaiError` is raised.
    Any other exception, including cancellation, stops all samples at once.
    """
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(min(8, os.cpu_count() or 1), "mai-open")
    waiting = deque(order)
    errors: list[MaiError] = []

    async def work() -> None:
        while waiting:
            index = waiting.popleft()
            outcome: R | SampleError
            try:
                try:
                    outcome = await run(await loop.run_in_executor(pool, open_sample, index))
                except SampleError as error:
                    outcome = error
                if not await report(index, outcome):
                    waiting.clear()
            except MaiError as error:
                waiting.clear()
                errors.append(error)

    try:
        await gather_or_cancel(work() for _ in range(min(max_open, len(order))))
    finally:
        # A document that hangs does not keep the engines up. The process still ends after it, or by a second Ctrl-C.
        pool.shutdown(wait=False, cancel_futures=True)
    if errors:
        raise errors[0]


@contextlib.contextmanager
def gc_frozen() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collection, and collect new ones less often.

    Otherwise the collector would scan about a million objects of the libraries, a third of the orchestration's time at
    20,000 samples (benchmarks/overhead.py), and scan the calls of a sample several times while it runs.
    """
    freeze = gc.get_freeze_count() == 0  # keep objects frozen that other code has frozen
    thresholds = gc.get_threshold()
    if freeze:
        gc.freeze()
    if thresholds[0]:  # 0: other code has switched the collector off
        gc.set_threshold(max(thresholds[0], NEW_OBJECTS), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if freeze:
            gc.unfreeze()
