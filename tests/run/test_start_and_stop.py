"""Start and stop of engines: at the same time, one after the other, and while the other happens."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmms_eval_mai.contract import Side
from lmms_eval_mai.engines.restart import RestartingEngine, StartLock
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import EngineCrashed, EngineStartError
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.run import Run


class SlowEngine(ScriptedEngine):
    """Starts when `may_start` is set, and records its steps in a list that several engines share."""

    def __init__(self, side: Side, steps: list[str], waits: bool = True) -> None:
        super().__init__(side, lambda prompt: Answer("x"), ScriptedOptions())
        self._steps, self.may_start = steps, asyncio.Event()
        if not waits:
            self.may_start.set()
        self.begun = threading.Event()

    async def start(self) -> None:
        self._steps.append(f"{self.side} begins")
        self.begun.set()
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self._steps.append(f"{self.side} is cancelled")
            raise
        self._steps.append(f"{self.side} is ready")

    async def close(self) -> None:
        self._steps.append(f"{self.side} is closed")


class BrokenEngine(SlowEngine):
    async def start(self) -> None:
        raise EngineStartError(f"{self.side} does not start")


@pytest.fixture
def found() -> list[str]:
    """The steps of the engines of a test."""
    return []


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return parse({"engine": "scripted", "small": str(tmp_path / "a"), "large": str(tmp_path / "a"), "journal": "off"})


@pytest.fixture
def engines(config: Config, tmp_path: Path) -> Engines:
    (tmp_path / "a").touch()
    return Engines(config)


@pytest.mark.parametrize(
    ("lock", "steps"),
    [
        (None, ["small begins", "large begins", "small is ready", "large is ready"]),
        ("one lock", ["small begins", "small is ready", "large begins", "large is ready"]),
    ],
)
def test_engines_start_at_the_same_time_unless_they_share_a_lock_also_after_a_stop(
    engines: Engines, found: list[str], lock: str | None, steps: list[str]
) -> None:
    starting = StartLock() if lock else None
    slow = [SlowEngine(side, found) for side in engines.of_side]
    engines.of_side = {engine.side: RestartingEngine(engine, 0, starting=starting) for engine in slow}

    async def start() -> None:
        may_start = asyncio.Event()
        for engine in slow:
            engine.may_start = may_start
        task = asyncio.ensure_future(engines.start_on_loop(["small", "large"]))
        for _ in range(10):  # enough turns of the loop for each start that may begin
            await asyncio.sleep(0)
        may_start.set()
        await task

    for _ in range(2):
        found.clear()
        engines.run(start())
        assert found == steps
        engines.stop()


def test_failed_start_cancels_the_start_of_the_other_engine(engines: Engines, found: list[str]) -> None:
    engines.of_side = {"small": SlowEngine("small", found), "large": BrokenEngine("large", found)}
    with pytest.raises(EngineStartError, match="large does not start"):
        engines.start()
    assert found == ["small begins", "small is cancelled"]
    engines.stop()


def start(engines: Engines, config: Config) -> None:
    engines.start()


def begin_run(engines: Engines, config: Config) -> None:
    Run(engines, config).begin({})


@pytest.mark.parametrize("begin", [start, begin_run])
def test_stop_during_a_start_cancels_it_and_leaves_no_engine_running(
    engines: Engines, config: Config, found: list[str], begin: Callable[[Engines, Config], None]
) -> None:
    slow = {side: SlowEngine(side, found) for side in engines.of_side}
    engines.of_side.update(slow)
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(begin, engines, config)
        assert slow["large"].begun.wait(10)
        engines.stop()
        assert sorted(found) == sorted(
            f"{side} {step}" for side in slow for step in ("begins", "is cancelled", "is closed")
        )
        with pytest.raises(EngineStartError, match="were stopped while they started"):
            starting.result()
    with pytest.raises(EngineCrashed, match="not running"):
        engines.submit(asyncio.sleep(0))


def test_start_that_comes_during_a_stop_begins_after_it(engines: Engines, found: list[str]) -> None:
    closing, may_close = threading.Event(), threading.Event()

    class SlowToClose(SlowEngine):
        async def close(self) -> None:
            closing.set()
            await asyncio.to_thread(may_close.wait, 10)
            await super().close()

    engines.of_side = {"large": SlowToClose("large", found, waits=False)}
    engines.start()
    with ThreadPoolExecutor(2) as threads:
        stopping = threads.submit(engines.stop)
        assert closing.wait(10)
        starting = threads.submit(engines.start)
        with pytest.raises(EngineCrashed, match="not running"):  # and does not wait for the end of the stop
            engines.submit(asyncio.sleep(0))
        may_close.set()
        stopping.result()
        starting.result()
    assert found == ["large begins", "large is ready", "large is closed", "large begins", "large is ready"]
    engines.stop()


def test_run_that_is_closed_before_it_begins_starts_no_engine(
    engines: Engines, config: Config, found: list[str]
) -> None:
    engines.of_side["large"] = SlowEngine("large", found)
    run = Run(engines, config)
    run.close()
    with pytest.raises(EngineStartError, match="closed before it began"):
        run.begin({})
    engines.stop()
    assert "large begins" not in found


def test_engine_that_fails_to_close_does_not_keep_the_others_running(
    engines: Engines, found: list[str], warnings: list[str]
) -> None:
    class FailsToClose(SlowEngine):
        async def close(self) -> None:
            raise RuntimeError("no more threads")

    engines.of_side = {
        "small": FailsToClose("small", [], waits=False),
        "large": SlowEngine("large", found, waits=False),
    }
    engines.start()
    engines.stop()
    assert found[-1] == "large is closed"
    assert warnings == ["mai_cascade: an engine did not stop cleanly: no more threads"]


def test_closed_event_loop_has_cancelled_all_its_tasks() -> None:
    thread = LoopThread()

    async def leave_task() -> "asyncio.Task[None]":
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        return task

    task = thread.run(leave_task())
    thread.close()
    assert task.cancelled()
