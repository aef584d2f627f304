"""Two engines share a GPU: only one is awake, all calls are answered, and a crash does not stop the other engine."""

import asyncio
from typing import Any

import pytest
from support.engines import prompt

from lmms_eval_mai.engines.base import Call, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine
from lmms_eval_mai.engines.time_sharing import TimeSharedEngine, TimeSharing
from lmms_eval_mai.errors import ArgumentError, EngineCrashed
from lmms_eval_mai.run.config import parse

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
    """A scripted engine that needs the GPU while it is awake. It crashes once, on the document `crashes_on`."""

    def __init__(self, name: str, gpu: Gpu, crashes_on: int | None = None) -> None:
        def script(prompt: Prompt) -> Answer:
            assert gpu.models == {name}, f"{name} answers while {gpu.models} is awake"
            gpu.log.append(name)
            fault = "death" if prompt.key.doc_id == crashes_on and gpu.log.count("crash") == 0 else None
            gpu.log += ["crash"] if fault else []
            return Answer("yes", seconds=0.002, fault=fault)  # type: ignore[arg-type]

        super().__init__(name, script)
        self._gpu = gpu

    async def start(self) -> None:
        self._gpu.load(self.side)
        await super().start()

    async def close(self) -> None:
        await super().close()
        self._gpu.free(self.side)

    async def sleep(self) -> None:
        if self._slots is None:
            self._gpu.free(self.side)
            raise EngineCrashed(f"The {self.side} engine has crashed.")
        assert not self._answering
        await asyncio.sleep(0.001)
        self._gpu.free(self.side)

    async def wake(self) -> None:
        self._gpu.load(self.side)
        await asyncio.sleep(0.001)


def cascade(count: int, crashes_on: int | None = None) -> tuple[list[Any], Gpu, TimeSharing]:
    """Run samples that call both engines, then the small one, then the large one."""
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> list[Any]:
        small, large = (
            RestartingEngine(
                TimeSharedEngine(
                    SleepableScriptedEngine(name, gpu, crashes_on if name == "small" else None), time_sharing
                ),
                restarts=1,
            )
            for name in ("small", "large")
        )
        await small.start()
        await large.start()

        async def sample(number: int) -> list[Call]:
            text = prompt(number)
            first = await asyncio.gather(small.generate(text, SAMPLING), large.generate(text, SAMPLING))
            return [*first, await small.generate(text, SAMPLING), await large.generate(text, SAMPLING)]

        found = await asyncio.gather(*(sample(number) for number in range(count)))
        await small.close()
        await large.close()
        return found

    return asyncio.run(asyncio.wait_for(run(), 30)), gpu, time_sharing


def test_both_engines_are_never_awake_and_open_samples_move_stage_by_stage() -> None:
    found, gpu, time_sharing = cascade(40)
    assert [len(calls) for calls in found] == [4] * 40 and len(gpu.log) == 160
    assert time_sharing.swaps <= 6 and gpu.models == set()


def test_an_engine_that_crashes_while_it_is_awake_is_restarted() -> None:
    found, gpu, _ = cascade(20, crashes_on=7)
    assert [len(calls) for calls in found] == [4] * 20 and gpu.log.count("crash") == 1


def test_other_calls_are_answered_after_waiting_calls_are_cancelled() -> None:
    gpu, time_sharing = Gpu(), TimeSharing()

    async def run() -> list[Call]:
        small, large = (
            TimeSharedEngine(SleepableScriptedEngine(name, gpu), time_sharing) for name in ("small", "large")
        )
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pair": "demo", "large": "http://a:1/v1"}, "mode=cascade uses vllm and openai"),
        ({"pair": "demo", "mode": "small"}, "mode=small uses one engine"),
        ({"pair": "demo"}, "sleep=true needs a GPU"),
    ],
)
def test_sleep_without_two_vllm_engines_on_a_gpu_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        config = parse({"sleep": True, **arguments})
        build(config.small, config.other(config.small), config.sleep).validate()
