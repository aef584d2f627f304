"""Two engines share a GPU: only one is awake, all calls are answered, and a crash does not stop the other engine."""

import asyncio
from typing import Any

import pytest
from support.engines import prompt

from lmms_eval_mai.contract import SIDES, Call, Prompt, Sampling
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.engines.time_sharing import TimeSharedEngine, TimeSharing
from lmms_eval_mai.errors import EngineCrashed

SAMPLING = Sampling(max_tokens=8)


class Gpu:
    """A GPU whose memory holds one model."""

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.log: list[str] = []

    def load(self, name: str) -> None:
        self.models.add(name)
        assert len(self.models) == 1, "two models on one GPU"

    def free(self, name: str) -> None:
        self.models.discard(name)


class SleepableScriptedEngine(ScriptedEngine):
    """A scripted engine that needs the GPU while it is awake. Only `sleep` and `close` free the GPU.

    It crashes once, on the document `crashes_on`. Its sleep number `fails_to_sleep` fails, and its model stays on the
    GPU; so does its `wake` number `fails_to_wake`.
    """

    def __init__(
        self,
        name: str,
        gpu: Gpu,
        crashes_on: int | None = None,
        fails_to_sleep: int | None = None,
        fails_to_wake: int | None = None,
    ) -> None:
        def script(prompt: Prompt) -> Answer:
            assert gpu.models == {name}, f"{name} answers while {gpu.models} is awake"
            gpu.log.append(name)
            fault = "death" if prompt.key.doc_id == crashes_on and gpu.log.count("crash") == 0 else None
            gpu.log += ["crash"] if fault else []
            return Answer("yes", seconds=0.002, fault=fault)  # type: ignore[arg-type]

        super().__init__(name, script)
        self._gpu = gpu
        self._fails_to_sleep, self._fails_to_wake = fails_to_sleep, fails_to_wake
        self._preparing = asyncio.Lock()
        self.sleeps = self.wakes = self.starts = self.answering = 0

    async def start(self) -> None:
        self.starts += 1
        self._gpu.load(self.side)
        await super().start()

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(0.01)  # a process needs time to end
        self._gpu.free(self.side)

    async def prepare(self, prompt: Prompt) -> Prompt:
        self._running_slots()
        async with self._preparing:  # one at a time, and slower than an answer
            await asyncio.sleep(0.003)
        self._gpu.log.append(f"{self.side} prepared while {self._gpu.models} is awake")
        return prompt

    async def submit(self, prompt: Prompt, prepared: Prompt, sampling: Sampling) -> Call:
        assert prepared is prompt
        self.answering += 1
        try:
            return await self.generate(prompt, sampling)
        finally:
            self.answering -= 1

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return thinking, 0

    async def sleep(self) -> None:
        self.sleeps += 1
        if self._slots is None or self.sleeps == self._fails_to_sleep:
            raise EngineCrashed(f"The {self.side} engine failed to sleep.")
        assert not self.answering
        await asyncio.sleep(0.001)
        self._gpu.free(self.side)

    async def wake(self) -> None:
        self.wakes += 1
        self._running_slots()
        self._gpu.load(self.side)
        if self.wakes == self._fails_to_wake:
            raise EngineCrashed(f"The {self.side} engine failed to wake.")
        await asyncio.sleep(0.001)


def cascade(count: int, faulty: str = "small", **faults: int) -> tuple[list[Any], Gpu, TimeSharing]:
    """Run samples that call both engines, then the small one, then the large one."""
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> list[Any]:
        engines = [SleepableScriptedEngine(name, gpu, **(faults if name == faulty else {})) for name in SIDES]
        small, large = (RestartingEngine(TimeSharedEngine(engine, time_sharing), restarts=1) for engine in engines)
        await small.start()
        await large.start()

        async def sample(number: int) -> list[Call]:
            text = prompt(number)
            first = await asyncio.gather(small.generate(text, SAMPLING), large.generate(text, SAMPLING))
            return [*first, await small.generate(text, SAMPLING), await large.generate(text, SAMPLING)]

        found = await asyncio.gather(*(sample(number) for number in range(count)))
        assert [engine.starts for engine in engines] == [2 if faults and name == faulty else 1 for name in SIDES]
        await small.close()
        await large.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 30)), gpu, time_sharing


def test_engines_that_share_a_gpu_are_started_and_stopped_on_two_event_loops() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()
    engines = [TimeSharedEngine(SleepableScriptedEngine(side, gpu), time_sharing) for side in SIDES]

    async def run() -> list[str]:
        await asyncio.gather(*(engine.start() for engine in engines))
        calls = await asyncio.gather(*(engine.generate(prompt(0), SAMPLING) for engine in engines))
        await asyncio.gather(*(engine.close() for engine in engines))
        return [call.text for call in calls]

    first = asyncio.run(asyncio.wait_for(run(), 30))
    assert asyncio.run(asyncio.wait_for(run(), 30)) == first


def answers(gpu: Gpu) -> int:
    return gpu.log.count("small") + gpu.log.count("large")


def test_both_engines_are_never_awake_and_open_samples_move_stage_by_stage() -> None:
    found, gpu, time_sharing = cascade(40)
    assert [len(calls) for calls in found] == [4] * 40 and answers(gpu) == 160
    assert time_sharing.swaps <= 6 and gpu.models == set()


def test_an_engine_that_crashes_while_it_is_awake_is_restarted() -> None:
    found, gpu, _ = cascade(20, crashes_on=7)
    assert [len(calls) for calls in found] == [4] * 20 and gpu.log.count("crash") == 1


@pytest.mark.parametrize(
    ("faulty", "fault"), [("small", "fails_to_sleep"), ("large", "fails_to_sleep"), ("small", "fails_to_wake")]
)
def test_engine_that_fails_to_sleep_or_wake_is_closed_before_the_other_engine_wakes(faulty: str, fault: str) -> None:
    found, gpu, _ = cascade(20, faulty, **{fault: 1})
    assert [len(calls) for calls in found] == [4] * 20 and answers(gpu) == 80


def test_calls_are_prepared_while_the_other_engine_is_awake() -> None:
    _, gpu, _ = cascade(20)
    assert "small prepared while {'large'} is awake" in gpu.log
    assert "large prepared while {'small'} is awake" in gpu.log


def two_engines(gpu: Gpu, time_sharing: TimeSharing) -> tuple[TimeSharedEngine, TimeSharedEngine]:
    small, large = (TimeSharedEngine(SleepableScriptedEngine(name, gpu), time_sharing) for name in SIDES)
    return small, large


def test_engine_that_failed_to_wake_is_closed_before_the_other_engine_answers() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> Call:
        small = TimeSharedEngine(SleepableScriptedEngine("small", gpu, fails_to_wake=1), time_sharing)
        large = TimeSharedEngine(SleepableScriptedEngine("large", gpu), time_sharing)
        await small.start()
        await large.start()
        with pytest.raises(EngineCrashed, match="failed to wake"):
            await small.generate(prompt(0), SAMPLING)
        return await large.generate(prompt(0), SAMPLING)

    assert asyncio.run(asyncio.wait_for(run(), 30)).text == "yes"


def test_truncating_thinking_wakes_no_engine() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> tuple[str, int]:
        small, large = two_engines(gpu, time_sharing)
        await small.start()
        await large.start()
        return await small.truncate_thinking(prompt(0), "thinking", SAMPLING)

    assert asyncio.run(run()) == ("thinking", 0)
    assert gpu.models == {"large"} and time_sharing.swaps == 0


def test_engine_can_be_closed_while_it_hangs_in_its_sleep() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    class Hanging(SleepableScriptedEngine):
        async def sleep(self) -> None:
            self.hangs = asyncio.get_running_loop().create_future()
            await self.hangs

        async def close(self) -> None:
            await super().close()
            if not self.hangs.done():
                self.hangs.set_exception(EngineCrashed("The large engine was closed."))

    async def run() -> Call:
        hanging = Hanging("large", gpu)
        small = TimeSharedEngine(SleepableScriptedEngine("small", gpu), time_sharing)
        large = TimeSharedEngine(hanging, time_sharing)
        await small.start()
        await large.start()
        call = asyncio.ensure_future(small.generate(prompt(0), SAMPLING))
        while not hasattr(hanging, "hangs"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await large.close()
        return await call

    assert asyncio.run(asyncio.wait_for(run(), 30)).text == "yes"


def test_start_that_is_cancelled_leaves_no_model_on_the_gpu() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    class Slow(SleepableScriptedEngine):
        async def start(self) -> None:
            await super().start()
            await asyncio.Event().wait()

    async def run() -> Call:
        small = TimeSharedEngine(SleepableScriptedEngine("small", gpu), time_sharing)
        await small.start()
        starting = asyncio.ensure_future(TimeSharedEngine(Slow("large", gpu), time_sharing).start())
        while gpu.models != {"large"}:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        starting.cancel()
        return await small.generate(prompt(0), SAMPLING)

    assert asyncio.run(asyncio.wait_for(run(), 30)).text == "yes"


def test_other_calls_are_answered_after_waiting_calls_are_cancelled() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> list[Call]:
        small, large = two_engines(gpu, time_sharing)
        await small.start()
        await large.start()
        waiting = [asyncio.ensure_future(small.generate(prompt(i), SAMPLING)) for i in range(4)]
        await asyncio.sleep(0)
        for task in waiting[:3]:
            task.cancel()
        answers = await asyncio.gather(waiting[3], large.generate(prompt(9), SAMPLING))
        await small.close()
        await large.close()
        return answers

    assert len(asyncio.run(asyncio.wait_for(run(), 30))) == 2
