"""Two engines share GPUs that hold one model at a time: one engine is awake, the other one sleeps.

A sleeping engine keeps its weights in the machine's memory. The engine that is awake answers all its calls. When it has
no call left and the other engine has one, the two engines swap. So the open samples move through the cascade stage by
stage. A swap costs the time to copy one model out of the GPU and the other one in; a larger `max_open_samples` needs
fewer swaps.

Prompts are prepared outside the GPU, so a call is prepared before it waits for its engine to wake up.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from loguru import logger

from lmms_eval_mai.contract import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.cancellation import shielded
from lmms_eval_mai.engines.per_loop import PerLoop
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import EngineCrashed


class SleepableEngine(Engine, Protocol):
    """An engine that can free its GPU memory and take it again. `generate` is `prepare` followed by `submit`."""

    async def prepare(self, prompt: Prompt) -> Any:
        """Return the prompt in the form that `submit` takes. Works while the engine sleeps. Raises a `SampleError` or
        `EngineCrashed`."""

    async def submit(self, prompt: Prompt, prepared: Any, sampling: Sampling) -> Call:
        """Return the model's answer to a prepared prompt. The seconds of the preparation are part of the call; the time
        between `prepare` and `submit` is not. Raises a `SampleError` or `EngineCrashed`."""

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
        self._calls: Counter[SleepableEngine] = Counter()
        """Engine -> number of its calls that are being prepared, wait or run."""
        self._condition = PerLoop(asyncio.Condition)
        """Its lock is held while an engine falls asleep, wakes up, starts or is closed."""
        self._changing: SleepableEngine | None = None
        """The engine that falls asleep, wakes up or starts."""
        self._closing = PerLoop(asyncio.Lock)
        self._notifying: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def call(self, engine: SleepableEngine) -> Iterator[None]:
        """Count a call. An engine that is awake stays awake while it has calls, also if all of them are still being
        prepared: a swap takes much longer than a preparation."""
        self._calls[engine] += 1
        try:
            yield
        finally:
            self._calls[engine] -= 1
            if not self._calls[engine]:
                self._notify_later()

    async def wait_until_awake(self, engine: SleepableEngine) -> None:
        """Wait until the engine is awake. It stays awake during the `call`. Raises `EngineCrashed`."""
        changed = self._condition.get()
        async with changed:
            while self._awake is not engine:
                if self._may_change():
                    await shielded(self._swap_to(engine))  # a cancelled call must leave no engine half awake
                else:
                    await changed.wait()

    @contextlib.asynccontextmanager
    async def starting(self, engine: SleepableEngine) -> AsyncIterator[None]:
        """Put the other engine to sleep, and keep it asleep while this engine starts during the block.

        The lock is held during the block, so no call can begin and no engine can wake.
        """
        changed = self._condition.get()
        async with changed:
            await changed.wait_for(lambda: self._awake is engine or self._may_change())
            await shielded(self._put_to_sleep())
            try:
                with self._change(engine):
                    yield
            except BaseException:
                await shielded(self._close(engine))  # a cancelled start may go on and take GPU memory
                raise
            self._awake = engine

    async def close(self, engine: SleepableEngine) -> None:
        """Close the engine. The other engine does not wake up before the GPU memory is free."""
        if self._changing is engine:  # the lock is held; closing the engine ends what holds it
            await self._close(engine)
            return
        async with self._condition.get():
            await shielded(self._close(engine))
            if self._awake is engine:
                self._awake = None
            self._condition.get().notify_all()

    def _may_change(self) -> bool:
        """Return whether the engine that is awake has no calls."""
        return self._awake is None or not self._calls[self._awake]

    async def _swap_to(self, engine: SleepableEngine) -> None:
        await self._put_to_sleep()
        try:
            with self._change(engine):
                await engine.wake()
        except EngineCrashed:
            await self._close(engine)  # it may hold a part of its GPU memory; its next call restarts it
            raise
        finally:
            self._condition.get().notify_all()
        self._awake = engine
        self.swaps += 1
        logger.debug(f"mai_cascade: swap {self.swaps}: the {engine.side} engine is awake.")

    async def _put_to_sleep(self) -> None:
        engine = self._awake
        if engine is None:
            return
        try:
            with self._change(engine):
                await engine.sleep()
        except EngineCrashed as error:  # its model may still be on the GPU; its next call restarts it
            logger.warning(f"mai_cascade: {error} It is closed, so that the other engine can use the GPU.")
            await self._close(engine)
        self._awake = None

    @contextlib.contextmanager
    def _change(self, engine: SleepableEngine) -> Iterator[None]:
        self._changing = engine
        try:
            yield
        finally:
            self._changing = None

    async def _close(self, engine: SleepableEngine) -> None:
        """Close the engine. If it is being closed already, wait for the end."""
        async with self._closing.get():
            await engine.close()

    def _notify_later(self) -> None:
        """Let the waiting calls check again whether they may swap. A cancelled call does not wait for the lock."""
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._condition.get():
            self._condition.get().notify_all()


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

    async def clear_caches(self) -> None:
        """Do nothing: an engine that sleeps loses its caches."""

    async def close(self) -> None:
        await self._time_sharing.close(self._engine)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        with self._time_sharing.call(self._engine):
            prepared = await self._engine.prepare(prompt)
            await self._time_sharing.wait_until_awake(self._engine)
            return await self._engine.submit(prompt, prepared, sampling)
