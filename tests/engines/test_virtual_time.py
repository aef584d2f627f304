"""The event loop with simulated time."""

import asyncio
import time

import pytest

from lmms_eval_mai.engines.scripted.virtual_time import VirtualTimeLoop, virtual_time
from lmms_eval_mai.run.event_loop import LoopThread

YEAR_S = 365 * 24 * 3600.0


def test_sleeps_take_simulated_time_only_and_end_in_their_order() -> None:
    ended = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append((seconds, asyncio.get_running_loop().time()))

    async def sleep_all() -> None:
        await asyncio.gather(*(sleep(seconds) for seconds in (YEAR_S, 0.5, 3600)))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(sleep_all())  # a real clock would need a year
    assert ended == [(seconds, pytest.approx(seconds)) for seconds in (0.5, 3600, YEAR_S)]


def test_timeouts_follow_the_simulated_clock() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(2 * YEAR_S), YEAR_S)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(wait()) == pytest.approx(YEAR_S)


def test_the_clock_stands_still_while_a_thread_works() -> None:
    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        timer = asyncio.create_task(asyncio.sleep(1))
        await asyncio.to_thread(time.sleep, 0.02)
        after_thread = loop.time()
        await timer
        return after_thread, loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(run()) == (0.0, pytest.approx(1.0))


def test_only_loops_created_in_the_block_have_simulated_time() -> None:
    async def sleep() -> float:
        await asyncio.sleep(YEAR_S)
        return asyncio.get_running_loop().time()

    with virtual_time():
        simulated = LoopThread()
    real = LoopThread()
    try:
        assert simulated.run(sleep()) == pytest.approx(YEAR_S)
        assert not isinstance(real.run(running_loop()), VirtualTimeLoop)
    finally:
        simulated.close()
        real.close()


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
