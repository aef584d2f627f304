"""An engine that comes back: deaths, calls that hang, and the one sample that kills.

When an engine dies, every call in flight is a suspect. It is rebuilt once for all of them, and suspects are asked again
before anything new: those of one death together, of two in groups, of more alone. Whoever is alone when the engine
dies once more is guilty, and that call becomes its sample's error. A death among calls that were no suspects costs one
of the restarts, which is given back when somebody is found guilty; the others are the search, which ends by itself.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.engines.base import Call, CallKey, Engine, Prompt, Sampling
from lmms_eval_mai.engines.waiting import wait_for
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineCrashedByCall, MaiError

R = TypeVar("R")

GROUP = 16
"""Suspects of two deaths that are asked at once."""
MAX_CONSECUTIVE_CRASHERS = 3
"""So many guilty calls with no answer between them are the engine's fault and not theirs."""
RESTART_DELAY_S = 5.0
"""Seconds before a start that failed is tried again: a killed process's memory is not free at once."""


class RestartingEngine(EngineWrapper[Engine]):
    """Any engine, restarted when it dies, under the contract of `Engine`."""

    def __init__(
        self,
        engine: Engine,
        restarts: int | None,
        call_timeout: float | None = None,
        starting: asyncio.Lock | None = None,
    ) -> None:
        """`restarts`: how often the engine may come back from deaths that no single call explains; None leaves all
        that to the engine itself. `call_timeout`:
        seconds for one call, waiting in the engine included. `starting`: held while an engine starts; engines that
        share a machine share it, since each measures the memory that is free."""
        super().__init__(engine)
        self._remote = restarts is None
        self._restarts = self._restarts_left = restarts or 0
        self._call_timeout = call_timeout
        self._starting = starting or asyncio.Lock()
        self._gone: EngineCrashed | None = None
        self._lives = 0
        self._guilty = 0
        self._restarting: asyncio.Task[None] | None = None
        self._door = _Admission()

    async def start(self) -> None:
        self._gone, self._restarts_left, self._guilty = None, self._restarts, 0
        async with self._starting:
            await self._engine.start()

    async def close(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises `CallTimeout` or `EngineCrashedByCall` for this call, `EngineCrashed` when the engine cannot come
        back."""
        return await self._with_restarts(prompt.key, lambda: self._timed(prompt, sampling))

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._with_restarts(prompt.key, lambda: self._engine.truncate_thinking(prompt, thinking, sampling))

    async def _with_restarts(self, key: CallKey, ask: Callable[[], Awaitable[R]]) -> R:
        if self._remote:
            return await ask()
        deaths = 0
        while True:
            async with self._door.passed(deaths):
                if self._gone is not None:
                    raise self._gone
                life = self._lives
                try:
                    answer = await ask()
                except EngineCrashed as error:
                    deaths += 1
                    if deaths > 1 and self._door.alone:
                        self._guilty += 1
                        # Its first death, when it was no suspect yet, cost one.
                        self._restarts_left = min(self._restarts, self._restarts_left + 1)
                        await self._wait_for_restart(life, error, charged=False)
                        raise EngineCrashedByCall(
                            f"{key}: the {self.side} engine died of this call {deaths} times, the last time while it "
                            "ran nothing else. Look at the document, and at the engine's log above."
                        ) from error
                    with self._door.suspect(deaths):
                        await self._wait_for_restart(life, error, charged=deaths == 1)
                else:
                    self._guilty = 0
                    return answer

    async def _timed(self, prompt: Prompt, sampling: Sampling) -> Call:
        if self._call_timeout is None:
            return await self._engine.generate(prompt, sampling)
        try:
            return await wait_for(self._call_timeout, self._engine.generate(prompt, sampling))
        except asyncio.TimeoutError:
            raise CallTimeout(
                f"{prompt.key}: no answer of the {self.side} engine within call_timeout={self._call_timeout:g} s. "
                "Raise it, or lower max_open_samples so that calls wait less; an engine that hangs says so in its log."
            ) from None

    async def _wait_for_restart(self, life: int, death: EngineCrashed, charged: bool) -> None:
        """Once a death, whoever notices it first; all others wait for it, and one that is cancelled stops nothing."""
        if life == self._lives and self._restarting is None and self._gone is None:
            self._restarting = asyncio.create_task(self._restart(death, charged))
        if self._restarting is not None:
            await asyncio.shield(self._restarting)

    async def _restart(self, death: EngineCrashed, charged: bool) -> None:
        try:
            if self._guilty >= MAX_CONSECUTIVE_CRASHERS:
                self._gone = EngineCrashed(
                    f"{death} It is not started again: it has died of {self._guilty} calls in a row."
                )
            while self._gone is None:
                if charged and self._restarts_left <= 0:
                    self._gone = EngineCrashed(
                        f"{death} It is not restarted: of engine_restarts={self._restarts}, none is left."
                    )
                    return
                self._restarts_left -= charged
                logger.warning(
                    f"mai_cascade: {death} It is started again ({self._restarts_left} of "
                    f"engine_restarts={self._restarts} left)."
                )
                try:
                    async with self._starting:
                        await self._engine.close()
                        await self._engine.start()
                    return
                except MaiError as error:
                    death, charged = EngineCrashed(f"The {self.side} engine did not start again: {error}"), True
                    await asyncio.sleep(RESTART_DELAY_S)
        except Exception as error:
            self._gone = EngineCrashed(f"{death} It could not be started again: {type(error).__name__}: {error}")
        finally:
            self._lives += 1
            self._restarting = None


class _Admission:
    """Who may be in flight: everyone; after a death the suspects, those of the most deaths first."""

    def __init__(self) -> None:
        self._inside = 0
        self._suspects: Counter[int] = Counter()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def alone(self) -> bool:
        """Whether whoever asks from inside is the only one there."""
        return self._inside == 1

    @contextlib.contextmanager
    def suspect(self, deaths: int) -> Iterator[None]:
        """While the engine comes back nobody new enters. The suspicion stays until the call has passed again."""
        self._suspects[deaths] += 1
        try:
            yield
        except BaseException:
            self._clear(deaths)
            raise

    @contextlib.asynccontextmanager
    async def passed(self, deaths: int) -> AsyncIterator[None]:
        try:
            while not self._may_enter(deaths):
                turn = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                await turn
            self._inside += 1
        except BaseException:
            self._clear(deaths)
            raise
        try:
            yield
        finally:
            self._inside -= 1
            self._clear(deaths)

    def _may_enter(self, deaths: int) -> bool:
        worst = max(self._suspects, default=0)
        room = {0: None, 1: None, 2: GROUP}.get(worst, 1)
        return deaths == worst and (room is None or self._inside < room)

    def _clear(self, deaths: int) -> None:
        if deaths:
            self._suspects[deaths] -= 1
            self._suspects += Counter()  # drops the zeros
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
