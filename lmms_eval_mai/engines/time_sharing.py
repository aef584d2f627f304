"""Two engines on a card that holds one model at a time: while one is awake the other sleeps, its weights in the
machine's memory.

The one that is awake answers all that comes, until it has nothing left to do and the other is waited for; then they
change. So the samples that are open move through the cascade stage by stage, and a change costs the time to copy one
model out and one in. `max_open_samples` says how many share a turn.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from loguru import logger

from lmms_eval_mai.engines.base import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.waiting import shielded
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import EngineCrashed


class SleepableEngine(Engine, Protocol):
    """An engine that can give its card's memory back and take it again. No call may be in flight."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class TimeSharing:
    """Whose turn it is."""

    def __init__(self) -> None:
        self.taken = 0
        """How often the engines changed."""
        self._awake: SleepableEngine | None = None
        self._inside = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def turn(self, engine: SleepableEngine) -> AsyncIterator[None]:
        """While the engine is awake."""
        async with self._changed:
            while self._awake is not engine:
                if self._inside == 0:
                    await shielded(self._change(engine))
                else:
                    await self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                await asyncio.shield(self._tell())

    @contextlib.asynccontextmanager
    async def start(self, engine: SleepableEngine) -> AsyncIterator[None]:
        """While an engine starts: the other sleeps, or is stopped by whoever starts this one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inside == 0 or self._awake is engine)
            await shielded(self._put_to_sleep())
            yield
            self._awake = engine

    def forget(self, engine: SleepableEngine) -> None:
        """It was closed."""
        if self._awake is engine:
            self._awake = None

    async def _change(self, engine: SleepableEngine) -> None:
        await self._put_to_sleep()
        await engine.wake()
        self._awake = engine
        self.taken += 1
        logger.debug(f"mai_cascade: turn {self.taken}: the {engine.side} engine is awake.")
        self._changed.notify_all()

    async def _put_to_sleep(self) -> None:
        before, self._awake = self._awake, None
        if before is not None:
            try:
                await before.sleep()
            except EngineCrashed as error:  # its memory is free as well; its next call brings it back
                logger.warning(f"mai_cascade: {error}")

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class TimeSharedEngine(EngineWrapper[SleepableEngine]):
    """An engine that shares its card, under the contract of `Engine`."""

    def __init__(self, engine: SleepableEngine, turns: TimeSharing) -> None:
        super().__init__(engine)
        self._turns = turns

    def describe(self) -> str:
        return f"{self._engine.describe()}, asleep while the other engine works"

    async def start(self) -> None:
        async with self._turns.start(self._engine):
            await self._engine.start()

    async def close(self) -> None:
        self._turns.forget(self._engine)
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        async with self._turns.turn(self._engine):
            return await self._engine.generate(prompt, sampling)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        async with self._turns.turn(self._engine):
            return await self._engine.truncate_thinking(prompt, thinking, sampling)
