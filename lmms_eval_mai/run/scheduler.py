"""Many samples at once, a bounded number of them open, each on its own way: no barrier of any kind.

Knows nothing of lmms-eval: it takes a function that opens sample number i and one that walks it.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lmms_eval_mai.errors import MaiError, SampleError

S = TypeVar("S")
R = TypeVar("R")


async def walk_all(
    count: int,
    open_sample: Callable[[int], S],
    walk: Callable[[S], Awaitable[R]],
    done: Callable[[int, R], Awaitable[None]],
    failed: Callable[[int, SampleError], Awaitable[bool]],
    max_open: int,
) -> None:
    """Open samples 0..count-1 in threads, walk up to `max_open` of them at a time, report each when it is done.

    A sample is opened only when there is room for it and forgotten when it is done: memory does not grow with `count`.
    A `SampleError` is that sample's; `failed` says whether to go on. Any other `MaiError` ends the run. Either way no
    further sample is opened, those on their way walk to their end, and then the error is raised, if there is one. What
    is no `MaiError`, a cancellation above all, stops everything at once.
    """
    loop = asyncio.get_running_loop()
    waiting = iter(range(count))
    stopped: list[MaiError | None] = []

    async def worker(pool: ThreadPoolExecutor) -> None:
        for index in waiting:
            if stopped:
                return
            try:
                try:
                    result = await walk(await loop.run_in_executor(pool, open_sample, index))
                except SampleError as error:
                    if not await failed(index, error):
                        stopped.append(None)
                else:
                    await done(index, result)
            except MaiError as error:
                stopped.append(error)

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
    for error in stopped:
        if error is not None:
            raise error


async def within(seconds: float, awaitable: Awaitable[R]) -> R:
    """Its result; `asyncio.TimeoutError` after so many seconds, when it is cancelled and has ended.

    As `asyncio.wait_for`, which before Python 3.12 forgets its own cancellation when that comes just as the coroutine
    ends (CPython's issue #86296): on Ctrl-C, such a worker would go on with all samples that are left.
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
        raise asyncio.TimeoutError
    return task.result()


class LoopThread:
    """An event loop in a thread of its own, for as long as engines live.

    lmms-eval calls a model synchronously, several times, and in a notebook from inside a running loop; vLLM's
    engines belong to one loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mai-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run to the end and return the result. On Ctrl-C the coroutine is cancelled, and has ended on return."""
        ended = threading.Event()

        async def noted() -> R:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(noted(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            ended.wait(timeout=10)
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
