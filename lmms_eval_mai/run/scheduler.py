"""Runs many samples at the same time. A bounded number of samples is open, and none waits for another.

To open a sample means to load its document and to decode its images. The sample is open until its run ends. This module
does not know lmms-eval: it takes a function that opens sample number i and a function that runs it.
"""

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from lmms_eval_mai.errors import MaiError, SampleError
from lmms_eval_mai.run.event_loop import gather_or_cancel

NEW_OBJECTS = 10_000
"""New objects after which garbage is collected while samples run. Python's default is 700, which are two samples."""

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
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "mai-open")
    queue = _SampleQueue(iter(range(count)), open_sample, run, report, pool)
    try:
        await gather_or_cancel(queue.work() for _ in range(min(max_open, count)))
    finally:
        # A document that hangs does not keep the engines up. The process still ends after it, or by a second Ctrl-C.
        pool.shutdown(wait=False, cancel_futures=True)
    if queue.first_error is not None:
        raise queue.first_error


@dataclass
class _SampleQueue(Generic[S, R]):
    """The samples of one call of `run_samples`. All workers share it; each of them has one open sample at a time."""

    waiting: Iterator[int]
    """Numbers of the samples that no worker has taken yet."""
    open_sample: Callable[[int], S]
    run: Callable[[S], Awaitable[R]]
    report: Callable[[int, R | SampleError], Awaitable[bool]]
    pool: ThreadPoolExecutor
    """Opens the samples."""
    stopped: bool = False
    """Whether no further sample may be opened."""
    first_error: MaiError | None = None
    """The first error that stopped the run."""

    async def work(self) -> None:
        """Run one sample after the other until none is left or the run stops."""
        for index in self.waiting:
            if self.stopped:
                return
            try:
                if not await self.report(index, await self._result(index)):
                    self.stopped = True
            except MaiError as error:
                self.stopped = True
                self.first_error = self.first_error or error

    async def _result(self, index: int) -> R | SampleError:
        """Open and run one sample. Returns its result, or the `SampleError` that it raised."""
        loop = asyncio.get_running_loop()
        try:
            return await self.run(await loop.run_in_executor(self.pool, self.open_sample, index))
        except SampleError as error:
            return error


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
