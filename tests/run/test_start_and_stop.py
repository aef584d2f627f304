"""Start and stop of a run's engines, and the end of their event loop."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.contract import Engine
from lmms_eval_mai.engines.restart import RestartingEngine, StartLock
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import EngineStartError, JournalError
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.engine_chain import start_engines
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.session import Session


class SlowEngine(ScriptedEngine):
    """Starts when `may_start` is set, and records its steps in a list that several engines share."""

    def __init__(self, side: Any, steps: list[str], may_start: asyncio.Event) -> None:
        super().__init__(side, lambda prompt: Answer("x"), ScriptedOptions())
        self._steps = steps
        self._may_start = may_start

    async def start(self) -> None:
        self._steps.append(f"{self.side} begins")
        try:
            await self._may_start.wait()
        except asyncio.CancelledError:
            self._steps.append(f"{self.side} is cancelled")
            raise
        self._steps.append(f"{self.side} is ready")


class StartsLater(SlowEngine):
    """Lets other starts run before it starts, so that they wait for the lock."""

    async def start(self) -> None:
        await asyncio.sleep(0)
        await super().start()


class BrokenEngine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__("large", lambda prompt: Answer("x"), ScriptedOptions())

    async def start(self) -> None:
        raise EngineStartError("large does not start")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return parse({"engine": "scripted", "small": str(tmp_path / "small"), "large": str(tmp_path / "large")})


@pytest.mark.parametrize(
    ("lock", "steps"),
    [
        (None, ["small begins", "large begins", "small is ready", "large is ready"]),
        ("one lock", ["small begins", "small is ready", "large begins", "large is ready"]),
    ],
)
def test_engines_start_at_the_same_time_unless_they_share_a_lock(
    config: Config, lock: str | None, steps: list[str]
) -> None:
    async def start() -> list[str]:
        found: list[str] = []
        may_start, starting = asyncio.Event(), StartLock() if lock else None
        engines: dict[str, Engine] = {
            side: RestartingEngine(SlowEngine(side, found, may_start), 0, starting=starting)
            for side in ("small", "large")
        }
        starts = asyncio.ensure_future(start_engines(engines, config))
        for _ in range(10):  # enough turns of the loop for each start that may begin
            await asyncio.sleep(0)
        may_start.set()
        await starts
        return found

    assert asyncio.run(start()) == steps


def test_engines_that_share_a_lock_start_again_on_another_event_loop(config: Config) -> None:
    steps: list[str] = []
    may_start = asyncio.Event()
    may_start.set()
    starting = StartLock()
    engines: dict[str, Engine] = {
        side: RestartingEngine(StartsLater(side, steps, may_start), 0, starting=starting) for side in ("small", "large")
    }
    for _ in range(2):
        asyncio.run(start_engines(engines, config))
    assert steps == ["small begins", "small is ready", "large begins", "large is ready"] * 2


def test_failed_start_cancels_the_start_of_the_other_engine(config: Config) -> None:
    async def start() -> list[str]:
        found: list[str] = []
        engines: dict[str, Engine] = {"small": SlowEngine("small", found, asyncio.Event()), "large": BrokenEngine()}
        with pytest.raises(EngineStartError, match="large does not start"):
            await start_engines(engines, config)
        return found

    assert asyncio.run(start()) == ["small begins", "small is cancelled"]


def test_journal_folder_that_cannot_be_written_is_refused_before_the_first_sample(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    scripts = {side: str(tmp_path / "file") for side in ("small", "large")}
    with pytest.raises(JournalError, match=r"The journal .*/file/journal cannot be written \(Not a directory\)"):
        Session(parse({"engine": "scripted", "journal": str(tmp_path / "file" / "journal"), **scripts}))


def test_closed_event_loop_has_cancelled_all_its_tasks() -> None:
    thread = LoopThread()

    async def leave_task() -> "asyncio.Task[None]":
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        return task

    task = thread.run(leave_task())
    thread.close()
    assert task.cancelled()
