"""Starts an engine again after a crash, limits the time of a call, and finds a call that crashes the engine.

After a crash the engine is started again, and the interrupted calls are made again before new ones: all together after
their first crash, and one at a time after their second. A call that crashes the engine while no other call runs is the
cause: it fails with `EngineCrashedByCall`, and the run goes on without it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.contract import CallKey, Engine, Model, Prompt, Reply, Sampling
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineCrashedByCall, EngineNotRunning, MaiError

R = TypeVar("R")

RESTART_DELAY_S = 5.0
"""Seconds before a failed start is tried again: the memory of a crashed process is not free at once."""
MAX_CAUSES = 3
"""So many calls that crash the engine, without an answer between them, mean that the engine itself is broken."""


class RestartedEngine(Model):
    """One engine of a run. All methods run on one event loop."""

    def __init__(
        self, engine: Engine, restarts: int | None, call_timeout: float | None = None, delay_s: float = RESTART_DELAY_S
    ) -> None:
        """`restarts`: how often the engine may be started again (`engine_restarts`); None: never, because it runs in a
        server, which the engine waits for. `call_timeout`: seconds for one call, its time in the engine's queue
        included."""
        self.side, self.engine = engine.side, engine
        self._restarts = self._left = restarts or 0
        self._is_server = restarts is None
        self._call_timeout, self._delay_s = call_timeout, delay_s
        self._running = 0  # calls
        self._crashes = Counter[object]()
        """An interrupted call that is not finished -> the crashes that interrupted it."""
        self._causes = 0
        """Calls that crashed the engine alone since its last answer."""
        self._changed = asyncio.Event()
        """Set when a call ends, so that the waiting calls look again whether they may run. A new one after each."""
        self._restart: asyncio.Task[None] | None = None  # of the last crash
        self._end: EngineCrashed | None = EngineNotRunning(f"The {self.side} engine is not running.")
        """Why the engine does not run, and is not started again. Every call raises it."""

    async def start(self) -> None:
        """Start the engine. Raises `EngineStartError`; the caller must then call `close`."""
        await self.engine.start()
        self._end, self._restart, self._left, self._causes = None, None, self._restarts, 0

    async def close(self) -> None:
        self._end = EngineNotRunning(f"The {self.side} engine was closed.")
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        await self.engine.close()

    @property
    def is_up(self) -> bool:
        """Whether calls are answered: the engine was not given up and is not restarting, and no call waits for a server
        that is away."""
        is_away = self._is_server and self._running > 0 and not self.engine.is_alive
        return self._end is None and (self._restart is None or self._restart.done()) and not is_away

    @property
    def has_died(self) -> bool:
        """Whether the engine's process has ended while no call runs. Only vLLM's engines tell."""
        return self.is_up and not (self._is_server or self._running or self.engine.is_alive)

    @property
    def given_up(self) -> EngineCrashed | None:
        """Why the engine is not started again. None: it was not given up."""
        return None if isinstance(self._end, EngineNotRunning) else self._end

    async def restart_if_dead(self) -> None:
        """Start an engine again that died while no call ran. It counts like any crash."""
        if self.has_died:
            crash = EngineCrashed(f"The {self.side} engine died while it had no work. {self.engine.last_error()}")
            self._restart = asyncio.create_task(self._start_again(crash, is_free=False))

    def count_tokens(self, text: str) -> int | None:
        return self.engine.count_tokens(text)

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._with_restarts(prompt.key, lambda: self.engine.truncate_thinking(prompt, thinking, sampling))

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        """Raises a `SampleError`, also `CallTimeout` or `EngineCrashedByCall`; raises `EngineCrashed` if the engine
        cannot be restarted."""
        return await self._with_restarts(prompt.key, lambda: self._within_timeout(prompt, sampling))

    async def _within_timeout(self, prompt: Prompt, sampling: Sampling) -> Reply:
        try:
            # Before Python 3.12, asyncio.wait_for loses a cancellation at the moment the call ends (CPython #86296). A
            # worker of the scheduler that loses Ctrl-C in this way would continue with all remaining samples.
            async with asyncio.timeout(self._call_timeout):
                return await self.engine.generate(prompt, sampling)
        except TimeoutError:
            raise CallTimeout(
                f"{prompt.key}: no answer of the {self.side} engine within call_timeout={self._call_timeout} s. "
                "Raise call_timeout, or lower max_open_samples so that calls wait less. If the engine hangs, its log "
                "shows where."
            ) from None

    async def _with_restarts(self, key: CallKey, attempt: Callable[[], Awaitable[R]]) -> R:
        """Make a call until no crash interrupts it, or until it is known to be the cause of its crashes."""
        call = object()
        try:
            while True:
                await self._enter(self._crashes[call])
                try:
                    answer = await attempt()
                    self._causes = 0
                    return answer
                except EngineCrashed as crash:
                    if self._is_server:
                        raise
                    if self._end is not None:  # it was closed during the call
                        raise self._end from crash
                    self._crashes[call] += 1
                    self._after_crash(self._crashes[call], key, crash)
                finally:
                    self._running -= 1
                    self._wake()
        finally:
            if self._crashes.pop(call, 0):
                self._wake()

    async def _enter(self, crashes: int) -> None:
        """Wait until a call may run that so many crashes have interrupted: after the calls with more of them, and alone
        after two."""
        while True:
            if self._restart is not None and not self._restart.done():
                await asyncio.wait([self._restart])  # a cancelled call does not stop the restart
            elif self._end is not None:
                raise self._end
            elif self._most_crashes() > crashes or (crashes > 1 and self._running):
                await self._changed.wait()
            else:
                self._running += 1
                return

    def _after_crash(self, crashes: int, key: CallKey, crash: EngineCrashed) -> None:
        """Begin the restart, if this call is the first one that notices this crash. Raises `EngineCrashedByCall` if the
        call is the cause."""
        is_cause = crashes > 2
        self._causes += is_cause
        if self.is_up:
            self._restart = asyncio.create_task(self._start_again(crash, is_free=crashes > 1))
        if is_cause:
            self._left = min(self._restarts, self._left + 1)  # the first of these crashes used one
            raise EngineCrashedByCall(
                f"{key}: the {self.side} engine crashed {crashes} times during this call, the last time while no other "
                f"call ran. Look at the document, and at the last error: {crash}"
            ) from crash

    def _most_crashes(self) -> int:
        return max(self._crashes.values(), default=0)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _start_again(self, crash: EngineCrashed, is_free: bool) -> None:
        """Start the engine again, or set `_end`. A failed start uses one more restart and is tried again.

        `is_free`: this restart is needed to find the call that crashes the engine, so it does not count.
        """
        message = f"mai_cascade: the {self.side} engine did not stop cleanly"
        close = logger.catch(level="WARNING", message=message)(self.engine.close)
        await close()
        while self._running:  # all interrupted calls end now, so it is known what they are
            await self._changed.wait()
        is_free = is_free or self._most_crashes() > 1
        while self._causes < MAX_CAUSES and (is_free or self._left > 0):
            self._left -= not is_free
            is_free = False
            logger.warning(
                f"mai_cascade: restarting the {self.side} engine (engine_restarts: {self._left} of {self._restarts} "
                f"left) after this error: {crash}"
            )
            try:
                await self.engine.start()
                logger.info(f"mai_cascade: {self.side} is ready again.")
                return
            except Exception as error:
                reason = str(error) if isinstance(error, MaiError) else f"{type(error).__name__}: {error}"
                crash = EngineCrashed(f"The restart of the {self.side} engine failed: {reason}")
                await close()
                await asyncio.sleep(self._delay_s)
        self._end = EngineCrashed(
            f"The {self.side} engine is not restarted: it crashed on {self._causes} calls in a row, or no restarts are "
            f"left (engine_restarts={self._restarts}). Fix the cause, which its log shows, or raise engine_restarts. "
            f"The last error: {crash}"
        )
