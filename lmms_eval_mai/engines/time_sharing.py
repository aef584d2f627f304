"""Two engines share GPUs that hold one model at a time: one engine is awake, the other one sleeps.

A sleeping engine keeps its weights in the machine's memory. The engine that is awake answers all its calls. When it has
no call left and the other engine has one, the two engines swap. So the open samples move through the cascade stage by
stage. A swap costs the time to copy one model out of the GPU and the other one in; a larger `max_open_samples` needs
fewer swaps.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from loguru import logger

from lmms_eval_mai.engines.base import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.cancellation import shielded
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import EngineCrashed


class SleepableEngine(Engine, Protocol):
    """An engine that can free its GPU memory and take it again."""

    async def sleep(self) -> None:
        """Free the GPU memory. No call may be in flight. Raises `EngineCrashed`."""

    async def wake(self) -> None:
        """Take the GPU memory again. Raises `EngineCrashed`."""


class TimeSharing:
    """Decides which of the two engines is awake."""

    def __init__(self) -> None:
        self.swaps = 0
        """Number of times that the engines swapped."""
        self._awake: SleepableEngine | None = None
        self._calls = 0
        """Calls in flight, all on the engine that is awake."""
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def awake(self, engine: SleepableEngine) -> AsyncIterator[None]:
        """Wait until the engine is awake, and keep it awake during the block."""
        async with self._changed:
            while self._awake is not engine:
                if self._calls == 0:
                    await shielded(self._swap_to(engine))  # a cancelled call must leave no engine half awake
                else:
                    await self._changed.wait()
            self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                await asyncio.shield(self._notify())

    @contextlib.asynccontextmanager
    async def starting(self, engine: SleepableEngine) -> AsyncIterator[None]:
        """Put the other engine to sleep, and keep it asleep while this engine starts during the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._calls == 0 or self._awake is engine)
            await shielded(self._put_to_sleep())
            yield
            self._awake = engine

    def closed(self, engine: SleepableEngine) -> None:
        """Record that the engine was closed and holds no GPU memory."""
        if self._awake is engine:
            self._awake = None

    async def _swap_to(self, engine: SleepableEngine) -> None:
        await self._put_to_sleep()
        await engine.wake()
        self._awake = engine
        self.swaps += 1
        logger.debug(f"mai_cascade: swap {self.swaps}: the {engine.side} engine is awake.")
        self._changed.notify_all()

    async def _put_to_sleep(self) -> None:
        engine, self._awake = self._awake, None
        if engine is not None:
            try:
                await engine.sleep()
            except EngineCrashed as error:  # a crashed engine holds no GPU memory; its next call restarts it
                logger.warning(
                    f"mai_cascade: {error} The run continues. If the next call of the {engine.side} engine fails, the "
                    "engine is restarted."
                )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class TimeSharedEngine(EngineWrapper[SleepableEngine]):
    """An engine that sleeps while the other engine works."""

    def __init__(self, engine: SleepableEngine, time_sharing: TimeSharing) -> None:
        super().__init__(engine)
        self._time_sharing = time_sharing

    def describe(self) -> str:
        return f"{self._engine.describe()}, asleep while the other engine works"

    async def start(self) -> None:
        async with self._time_sharing.starting(self._engine):
            await self._engine.start()

    async def close(self) -> None:
        self._time_sharing.closed(self._engine)
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        async with self._time_sharing.awake(self._engine):
            return await self._engine.generate(prompt, sampling)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        async with self._time_sharing.awake(self._engine):
            return await self._engine.truncate_thinking(prompt, thinking, sampling)
