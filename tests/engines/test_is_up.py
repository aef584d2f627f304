"""Whether an engine answers calls, as its wrappers tell it."""

import asyncio

from support.samples import sample

from lmms_eval_mai.engines.base import CallKey, Prompt, Sampling
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.run.timed_engine import TimedEngine


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
        engine = TimedEngine(RestartingEngine(inner, restarts=1))
        inner.ready.set()
        await engine.start()
        assert engine.is_up()
        inner.ready.clear()
        prompt = Prompt(sample().question, CallKey("task", 0, 0, "small", "short"))
        asking = asyncio.create_task(engine.generate(prompt, Sampling(8)))
        await inner.restarting.wait()
        assert not engine.is_up() and not asking.done()
        inner.ready.set()
        assert (await asking).text == "[[yes]]" and engine.is_up()

    asyncio.run(run())
