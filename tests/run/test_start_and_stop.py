"""Start and stop of engines: at the same time, one after the other, while the other happens, and by Ctrl-C."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.evaluations import Evaluations
from support.samples import sample

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.errors import ArgumentError, EngineCrashed, EngineStartError, SampleError
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation


class SlowEngine(ScriptedEngine):
    """Starts when `may_start` is set, and records its steps in a list that several engines share."""

    shares_gpu = False

    def __init__(self, side: Any, steps: list[str], waits: bool = True) -> None:
        super().__init__(side, lambda prompt: Answer("x"))
        self.steps, self.may_start, self.begun = steps, asyncio.Event(), threading.Event()
        if not waits:
            self.may_start.set()

    async def start(self) -> None:
        self.steps.append(f"{self.side} begins")
        self.begun.set()
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.steps.append(f"{self.side} is cancelled")
            raise
        self.steps.append(f"{self.side} is ready")

    async def close(self) -> None:
        self.steps.append(f"{self.side} is closed")


@pytest.fixture
def steps() -> list[str]:
    """The steps of the engines of a test."""
    return []


@pytest.fixture
def world(tmp_path: Path) -> Evaluations:
    return Evaluations(tmp_path, store="off")


@pytest.mark.parametrize(
    ("shares_gpu", "expected"),
    [
        (False, ["small begins", "large begins", "small is ready", "large is ready"]),
        (True, ["small begins", "small is ready", "large begins", "large is ready"]),
    ],
)
def test_engines_start_at_the_same_time_unless_they_share_a_gpu(
    world: Evaluations, steps: list[str], shares_gpu: bool, expected: list[str]
) -> None:
    slow = [SlowEngine(side, steps) for side in SIDES]
    engines = world.engines(*slow)

    async def start() -> None:
        may_start = asyncio.Event()
        for engine in slow:
            engine.may_start = may_start
        slow[0].shares_gpu = slow[1].shares_gpu = shares_gpu
        task = asyncio.ensure_future(engines.start())
        for _ in range(10):  # enough turns of the loop for each start that may begin
            await asyncio.sleep(0)
        may_start.set()
        await task

    engines.run(start())
    engines.run(engines.start())
    assert steps == expected
    engines.stop()
    with pytest.raises(EngineStartError, match="Make a new object"):
        engines.run(engines.start())


@pytest.mark.parametrize("begin", [Engines.start, lambda engines: Evaluation(engines, engines.config).begin({})])
def test_stop_during_a_start_cancels_it_and_leaves_no_engine_running(
    world: Evaluations, steps: list[str], begin: Callable[[Engines], Coroutine[Any, Any, None]]
) -> None:
    slow = {side: SlowEngine(side, steps) for side in SIDES}
    engines = world.engines(*slow.values())
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(engines.run, begin(engines))
        assert slow["large"].begun.wait(10)
        engines.stop()
        expected = [f"{side} {step}" for side in slow for step in ("begins", "is cancelled", "is closed")]
        assert sorted(steps) == sorted(expected)
        with pytest.raises(EngineStartError, match="were stopped"):
            starting.result()
    with pytest.raises(EngineCrashed, match="not running"):
        engines.submit(asyncio.sleep(0))


def test_a_stop_goes_on_after_ctrl_c_and_the_next_one_waits_for_its_end(world: Evaluations, steps: list[str]) -> None:
    class Interrupts(SlowEngine):
        async def close(self) -> None:
            main = threading.main_thread().ident
            assert main is not None
            await asyncio.sleep(0.1)  # the main thread waits for the stop
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(0.2)
            await super().close()

    engines = world.engines(Interrupts("small", steps, waits=False))
    engines.run(engines.start(["small"]))
    with pytest.raises(KeyboardInterrupt):
        engines.stop()
    engines.stop()
    assert steps == ["small begins", "small is ready", "small is closed"]


def test_a_failed_start_cancels_the_start_of_the_other_engine(world: Evaluations, steps: list[str]) -> None:
    class Broken(SlowEngine):
        async def start(self) -> None:
            raise EngineStartError(f"{self.side} does not start")

    engines = world.engines(SlowEngine("small", steps), Broken("large", steps))
    with pytest.raises(EngineStartError, match="large does not start"):
        engines.run(engines.start())
    assert steps == ["small begins", "small is cancelled"]
    engines.stop()


def test_an_engine_that_fails_to_close_does_not_keep_the_others_running(
    world: Evaluations, steps: list[str], warnings: list[str]
) -> None:
    class FailsToClose(SlowEngine):
        async def close(self) -> None:
            raise RuntimeError("no more threads")

    engines = world.engines(FailsToClose("small", [], waits=False), SlowEngine("large", steps, waits=False))
    engines.run(engines.start())
    engines.stop()
    assert steps[-1] == "large is closed" and len(warnings) == 1 and "no more threads" in warnings[0]


def test_an_unexpected_error_fails_its_sample_and_says_how_to_report_it(world: Evaluations) -> None:
    async def divide(sample: Any, pair: Any) -> Any:
        raise ZeroDivisionError("by 0")

    engines = world.engines()
    evaluation = Evaluation(engines, world.config)
    engines.run(evaluation.begin({}))
    with pytest.raises(SampleError, match=r"pope_x document 0: ZeroDivisionError: by 0\. .* --verbosity DEBUG"):
        engines.run(evaluation.run_one(sample, divide))
    evaluation.stop()


def test_a_method_that_needs_a_probability_is_refused_if_the_engine_reports_none_for_an_answer_that_is_not_empty(
    tmp_path: Path,
) -> None:
    world = Evaluations(tmp_path, store="off", method="mai_confidence", min_confidence=0.2)
    assert [trace.exit for trace in world.run(range(3))] == ["confident"] * 3
    world.logprob = None
    with pytest.raises(ArgumentError, match="large_engine=scripted did not report it"):
        world.run(range(3))
    world = Evaluations(tmp_path, store="off", method="own_thinking", min_confidence=0.2)
    world.logprob, world.short = None, ""
    assert [trace.exit for trace in world.run(range(3))] == ["large_think"] * 3
