"""Restarts a crashed engine, limits the time of a call, and isolates a call that crashes the engine.

What happens after a crash:

1. The wrapped engine raises `EngineCrashed` for every call that ran. The first of these calls starts one restart; the
   others wait for it. No sample fails yet.
2. The interrupted calls are retried before any new call runs: all together; after a second crash 16 at a time; after a
   third crash one at a time (`crash_admission.py`).
3. A call that crashes the engine again while no other call runs is the cause. It fails with `EngineCrashedByCall`, and
   the run continues without it.

An engine that crashes while no call runs is restarted by its next call. A server asks for a check each second
(`idle_check_s`), which starts the restart earlier.

`engine_restarts` limits the number of counted restarts. A restart is counted if the call that asks for it has crashed
for the first time, or if the start before it failed. Restarts for calls with more crashes are not counted, because they
serve to find the cause. When one call is found to be the cause, one counted restart is added to the remaining ones
again. But if three such calls follow each other without an answer between them, the engine itself is broken: it is not
restarted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.contract import Call, CallKey, Engine, Prompt, Sampling
from lmms_eval_mai.engines.cancellation import wait_for
from lmms_eval_mai.engines.crash_admission import Admission
from lmms_eval_mai.engines.per_loop import PerLoop
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineCrashedByCall, MaiError

R = TypeVar("R")

MAX_CONSECUTIVE_CRASHERS = 3
"""The engine is not restarted after this many calls that crash it alone, with no answer between them."""
RESTART_DELAY_S = 5.0
"""Seconds before a failed start is tried again: the memory of a crashed process is not free at once."""


class RestartingEngine(EngineWrapper[Engine]):
    """An engine that is restarted after a crash."""

    def __init__(
        self,
        engine: Engine,
        restarts: int | None,
        call_timeout: float | None = None,
        starting: PerLoop[asyncio.Lock] | None = None,
        restart_delay_s: float = RESTART_DELAY_S,
        idle_check_s: float | None = None,
    ) -> None:
        """`restarts`: largest number of counted restarts. None: never restart, because the engine runs in a server.
        `call_timeout`: seconds for one call, its time in the engine's queue included.
        `starting`: held while the engine starts; engines that must start one after the other share it.
        `idle_check_s`: seconds between two checks that the engine has not crashed while no call runs. None: no checks.
        """
        super().__init__(engine)
        self._can_restart = restarts is not None
        self._restarts = self._restarts_left = restarts or 0
        self._call_timeout = call_timeout
        self._starting = starting or PerLoop(asyncio.Lock)
        self._restart_delay_s, self._idle_check_s = restart_delay_s, idle_check_s
        self._admission = Admission()
        self._generation = 0
        """Number of finished restarts. A call that started in an earlier generation must not start another restart."""
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._consecutive_crashers = 0
        """Calls that crashed the engine alone since the last answer."""
        self._fatal_error: EngineCrashed | None = None
        """Set when the engine is not restarted any more. Every further call raises it."""

    def is_up(self) -> bool:
        return self._restarting is None and self._fatal_error is None and super().is_up()

    async def start(self) -> None:
        self._fatal_error, self._restarts_left, self._consecutive_crashers = None, self._restarts, 0
        async with self._starting.get():
            await self._engine.start()
        if self._restarts and self._idle_check_s is not None:
            self._watching = asyncio.create_task(self._watch(self._idle_check_s))

    async def close(self) -> None:
        tasks = [task for task in (self._watching, self._restarting) if task is not None]
        self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises `CallTimeout` or `EngineCrashedByCall` for this call, and `EngineCrashed` if the engine cannot be
        restarted."""
        return await self._with_restarts(prompt.key, lambda: self._with_timeout(prompt, sampling))

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._with_restarts(prompt.key, lambda: self._engine.truncate_thinking(prompt, thinking, sampling))

    async def _with_timeout(self, prompt: Prompt, sampling: Sampling) -> Call:
        if self._call_timeout is None:
            return await self._engine.generate(prompt, sampling)
        try:
            return await wait_for(self._call_timeout, self._engine.generate(prompt, sampling))
        except TimeoutError:
            raise CallTimeout(
                f"{prompt.key}: no answer of the {self.side} engine within call_timeout={self._call_timeout:g} s. "
                "Raise call_timeout, or lower max_open_samples so that calls wait less. If the engine hangs, its log "
                "shows where."
            ) from None

    async def _with_restarts(self, key: CallKey, call: Callable[[], Awaitable[R]]) -> R:
        if not self._can_restart:
            return await call()
        with self._admission.ticket() as ticket:
            while True:
                await self._admission.enter(ticket)
                if self._fatal_error is not None:
                    raise self._fatal_error
                generation = self._generation
                try:
                    answer = await call()
                except EngineCrashed as crash:
                    was_alone = self._admission.crashed(ticket)
                    if was_alone and ticket.crashes > 1:
                        await self._isolate(generation, crash)
                        raise EngineCrashedByCall(
                            f"{key}: the {self.side} engine crashed {ticket.crashes} times during this call, the last "
                            "time while no other call ran. Look at the document, and at the engine's log above."
                        ) from crash
                    await self._wait_for_restart(generation, crash, uses_restart=ticket.crashes == 1)
                    self._admission.leave(ticket)
                else:
                    self._consecutive_crashers = 0
                    return answer

    async def _watch(self, seconds: float) -> None:
        """Restart the engine if it crashes while no call runs. A call that runs finds the crash itself."""
        while True:
            await asyncio.sleep(seconds)
            if self._admission.is_idle() and not self._engine.is_up():
                crash = EngineCrashed(f"The {self.side} engine stopped while it had no calls. See its log above.")
                await self._wait_for_restart(self._generation, crash, uses_restart=True)

    async def _isolate(self, generation: int, crash: EngineCrashed) -> None:
        """Restart the engine after one call was found to be the cause of its crashes."""
        self._consecutive_crashers += 1
        self._restarts_left = min(self._restarts, self._restarts_left + 1)  # the restart after its first crash
        await self._wait_for_restart(generation, crash, uses_restart=False)

    async def _wait_for_restart(self, generation: int, crash: EngineCrashed, uses_restart: bool) -> None:
        """Start a restart if no other call of this crash has started it, and wait for its end. A cancelled call does
        not stop the restart."""
        if generation == self._generation and self._restarting is None and self._fatal_error is None:
            self._restarting = asyncio.create_task(self._restart(crash, uses_restart))
        if self._restarting is not None:
            await asyncio.shield(self._restarting)

    async def _restart(self, crash: EngineCrashed, uses_restart: bool) -> None:
        """Restart the engine, or set `_fatal_error`. A failed start uses one more restart and is tried again."""
        try:
            while (no_restart := self._why_no_restart(uses_restart)) is None:
                self._restarts_left -= 1 if uses_restart else 0
                logger.warning(
                    f"mai_cascade: restarting the {self.side} engine (engine_restarts: {self._restarts_left} of "
                    f"{self._restarts} left) after this error: {crash}"
                )
                try:
                    async with self._starting.get():
                        await self._engine.close()
                        await self._engine.start()
                    logger.info(f"mai_cascade: {self.side} is ready again.")
                    return
                except MaiError as error:
                    crash, uses_restart = EngineCrashed(f"The restart of the {self.side} engine failed: {error}"), True
                    await asyncio.sleep(self._restart_delay_s)
            self._fatal_error = EngineCrashed(
                f"The {self.side} engine is not restarted: {no_restart} The last error: {crash}"
            )
        except Exception as error:
            self._fatal_error = EngineCrashed(
                f"The restart of the {self.side} engine failed ({type(error).__name__}: {error}). The error before the "
                f"restart: {crash}"
            )
        finally:
            self._generation += 1
            self._restarting = None

    def _why_no_restart(self, uses_restart: bool) -> str | None:
        """Return why the engine must not be restarted and what to do, or None."""
        if self._consecutive_crashers >= MAX_CONSECUTIVE_CRASHERS:
            return f"it crashed on {self._consecutive_crashers} calls in a row. Fix the cause, which its log shows."
        if uses_restart and self._restarts_left <= 0:
            return (
                f"no restarts left (engine_restarts={self._restarts}). Fix the cause, which its log shows, or raise "
                "engine_restarts."
            )
        return None
