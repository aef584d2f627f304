"""An engine that comes back: deaths, calls that hang, and the one sample that kills.

When an engine dies, every call in flight is a suspect. It is rebuilt once for all of them; suspects are asked again
before anything new, the first time together, from the second time on alone. Whoever is alone when the engine dies is
guilty: that call becomes its sample's error, and the restarts that it cost are given back.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from loguru import logger

from lmms_eval_mai.engines.base import Call, Engine, Prompt, Sampling
from lmms_eval_mai.errors import CallTimeout, EngineDied, KilledEngine
from lmms_eval_mai.fingerprint import Identity


class SupervisedEngine:
    """Any engine, restarted when it dies, under the contract of `Engine`."""

    def __init__(self, engine: Engine, restarts: int, call_timeout: float | None = None) -> None:
        """`restarts`: how often the engine may come back from deaths that no single call explains.
        `call_timeout`: seconds for one call, waiting in the engine included."""
        self.name = engine.name
        self._engine = engine
        self._restarts_left = restarts
        self._call_timeout = call_timeout
        self._gone: EngineDied | None = None
        self._lives = 0
        self._rebuilding: asyncio.Task[None] | None = None
        self._door = _Door()

    def check(self) -> None:
        self._engine.check()

    def identity(self) -> Identity:
        return self._engine.identity()

    async def start(self) -> None:
        await self._engine.start()

    async def close(self) -> None:
        if self._rebuilding is not None:
            self._rebuilding.cancel()
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises `CallTimeout` or `KilledEngine` for this call, `EngineDied` when the engine cannot come back."""
        deaths = 0
        while True:
            async with self._door.passed(deaths):
                if self._gone is not None:
                    raise self._gone
                life = self._lives
                try:
                    return await self._timed(prompt, sampling)
                except EngineDied as error:
                    deaths += 1
                    if deaths > 1 and self._door.alone:
                        self._restarts_left += deaths
                        await self._rebuilt(life, error)
                        raise KilledEngine(
                            f"{prompt.key}: the {self.name} engine died of this call {deaths} times, the last time "
                            "while it ran nothing else. Look at the document, and at the engine's log above."
                        ) from error
                    with self._door.suspect(deaths):
                        await self._rebuilt(life, error)

    async def shorten(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._engine.shorten(prompt, thinking, sampling)

    async def _timed(self, prompt: Prompt, sampling: Sampling) -> Call:
        if self._call_timeout is None:
            return await self._engine.generate(prompt, sampling)
        try:
            return await asyncio.wait_for(self._engine.generate(prompt, sampling), self._call_timeout)
        except asyncio.TimeoutError:
            raise CallTimeout(
                f"{prompt.key}: no answer of the {self.name} engine within call_timeout={self._call_timeout:g} s. "
                "Raise it, or lower max_open_samples so that calls wait less."
            ) from None

    async def _rebuilt(self, life: int, death: EngineDied) -> None:
        """Once a death, whoever notices it first; all others wait for it, and one that is cancelled stops nothing."""
        if life == self._lives and self._rebuilding is None and self._gone is None:
            self._rebuilding = asyncio.create_task(self._rebuild(death))
        if self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)

    async def _rebuild(self, death: EngineDied) -> None:
        try:
            if self._restarts_left <= 0:
                self._gone = EngineDied(f"{death} It is not started again: engine_restarts is used up.")
                return
            self._restarts_left -= 1
            logger.warning(f"mai_cascade: {death} It is started again ({self._restarts_left} restarts left).")
            await self._engine.close()
            await self._engine.start()
        except Exception as error:
            self._gone = EngineDied(f"{death} It could not be started again: {error}")
        finally:
            self._lives += 1
            self._rebuilding = None


class _Door:
    """Who may be in flight: everyone; after a death the suspects first, those of two deaths one at a time."""

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
        return deaths == worst and (worst < 2 or self._inside == 0)

    def _clear(self, deaths: int) -> None:
        if deaths:
            self._suspects[deaths] -= 1
            self._suspects += Counter()  # drops the zeros
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
