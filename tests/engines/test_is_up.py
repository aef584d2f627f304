"""Whether an engine answers calls, as its wrappers tell it, and what happens if it dies while nobody asks."""

import asyncio
from typing import Literal

from support.samples import sample

from lmms_eval_mai.contract import CallKey, Prompt, Sampling
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.run.measured_engine import MeasuredEngine

PROMPT = Prompt(sample().question, CallKey("task", 0, 0, "small", "short"))


class SlowToStart(ScriptedEngine):
    """An engine that starts when `ready` is set, and crashes in its first call."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.restarting = asyncio.Event()
        self.calls = 0
        super().__init__("small", self._crash_once)

    def _crash_once(self, prompt: Prompt) -> Answer:
        self.calls += 1
        return Answer("[[yes]]", fault="death" if self.calls == 1 else None)

    async def start(self) -> None:
        if self.calls:
            self.restarting.set()
        await self.ready.wait()
        await super().start()


def test_engine_is_not_up_from_its_crash_to_the_end_of_its_restart() -> None:
    async def run() -> None:
        inner = SlowToStart()
        engine = MeasuredEngine(RestartingEngine(inner, restarts=1))
        inner.ready.set()
        await engine.start()
        assert engine.is_up()
        inner.ready.clear()
        asking = asyncio.create_task(engine.generate(PROMPT, Sampling(8)))
        await inner.restarting.wait()
        assert not engine.is_up() and not asking.done()
        inner.ready.set()
        assert (await asking).text == "[[yes]]" and engine.is_up()

    asyncio.run(run())


class Mortal(ScriptedEngine):
    """An engine that can crash without a call."""

    def __init__(self, fault: Literal["hang"] | None = None) -> None:
        self.starts = 0
        super().__init__("small", lambda prompt: Answer("[[yes]]", fault=fault))

    async def start(self) -> None:
        self.starts += 1
        await super().start()

    def die(self) -> None:
        self._slots = None


def test_engine_that_crashes_while_no_call_runs_is_restarted_without_a_call(warnings: list[str]) -> None:
    async def run() -> int:
        inner = Mortal()
        engine = RestartingEngine(inner, restarts=1, idle_check_s=0.001)
        await engine.start()
        inner.die()
        assert not engine.is_up()
        while not engine.is_up():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await engine.close()
        return inner.starts

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 2
    assert "restarting the small engine" in warnings[0] and "stopped while it had no calls" in warnings[0]


def test_crash_during_a_call_is_left_to_the_call() -> None:
    """A restart that the check starts is always counted. One for a call that has crashed the engine twice is not."""

    async def run() -> int:
        inner = Mortal(fault="hang")
        engine = RestartingEngine(inner, restarts=1, idle_check_s=0.001)
        await engine.start()
        asking = asyncio.create_task(engine.generate(PROMPT, Sampling(8)))
        await asyncio.sleep(0.001)
        inner.die()
        await asyncio.sleep(0.02)
        asking.cancel()
        await engine.close()
        return inner.starts

    assert asyncio.run(run()) == 1


def test_closed_engine_is_not_restarted() -> None:
    async def run() -> int:
        inner = Mortal()
        engine = RestartingEngine(inner, restarts=1, idle_check_s=0)
        await engine.start()
        await engine.close()
        for _ in range(10):
            await asyncio.sleep(0)
        return inner.starts

    assert asyncio.run(run()) == 1
