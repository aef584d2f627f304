"""Restarts a crashed engine, limits the time of a call, and finds a call that crashes the engine.

What happens after a crash:

1. The wrapped engine raises `EngineCrashed` for every call that ran. The first of these calls starts one restart; the
   others wait for it. No sample fails yet.
2. The interrupted calls are retried before any new call runs: all together after their first crash, and one at a time
   after their second. So an ordinary crash costs one retry of each interrupted call, in full batches. Only if the
   engine crashes during the retries too, one of the calls is probably the cause, and the slow search is worth its time.
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
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from loguru import logger

from lmms_eval_mai.contract import Call, CallKey, Engine, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineCrashedByCall, EngineNotRunning, MaiError

R = TypeVar("R")

MAX_CONSECUTIVE_CRASHERS = 3
"""The engine is not restarted after this many calls that crash it alone, with no answer between them."""
RESTART_DELAY_S = 5.0
"""Seconds before a failed start is tried again: the memory of a crashed process is not free at once."""


class StartLock:
    """Engines that share this object start one after the other, also after a stop, when another event loop runs."""

    def __init__(self) -> None:
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        """Event loop -> its lock. Only one event loop may use a lock for which a task has waited."""

    def get(self) -> asyncio.Lock:
        """Return the lock of the event loop that runs."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


class _Turns:
    """Decides which calls may run: those with the most crashes first, and alone after their second crash."""

    def __init__(self) -> None:
        self._running: set[object] = set()
        self._crashes: Counter[object] = Counter()
        """Unfinished call -> number of crashes that have interrupted it. Calls without a crash are left out."""
        self._changed = asyncio.Event()

    async def enter(self, call: object) -> None:
        """Wait until the call may run. From then on it counts as running."""
        while not self._may_run(call):
            await self._changed.wait()
        self._running.add(call)

    def _may_run(self, call: object) -> bool:
        most = max(self._crashes.values(), default=0)
        return self._crashes[call] == most and (most < 2 or not self._running)

    def crashed(self, call: object) -> tuple[int, bool]:
        """Record that the engine crashed while the call ran. Returns the number of crashes of this call, and whether no
        other call ran.

        The call counts as running until it leaves, so that every call of one crash sees the others.
        """
        self._crashes[call] += 1
        return self._crashes[call], len(self._running) == 1

    def leave(self, call: object, finished: bool) -> None:
        """Record that the call does not run any more. `finished`: it is not retried."""
        self._running.discard(call)
        if not self._crashes:  # no call waits
            return
        if finished:
            self._crashes.pop(call, None)
        self._changed.set()  # the waiting calls look again whether they may run
        self._changed = asyncio.Event()

    def is_idle(self) -> bool:
        """Return whether no call runs."""
        return not self._running


class RestartingEngine(EngineWrapper):
    """An engine that is restarted after a crash."""

    def __init__(
        self,
        engine: Engine,
        restarts: int | None,
        call_timeout: float | None = None,
        starting: StartLock | None = None,
        restart_delay_s: float = RESTART_DELAY_S,
        idle_check_s: float | None = None,
    ) -> None:
        """`restarts`: largest number of counted restarts. None: never restart, because the engine runs in a server.
        `call_timeout`: seconds for one call, its time in the engine's queue included. None: no limit.
        `starting`: held while the engine starts; engines that must start one after the other share it.
        `idle_check_s`: seconds between two checks that the engine has not crashed while no call runs. None: no checks.
        """
        super().__init__(engine)
        self._can_restart = restarts is not None
        self._restarts = self._restarts_left = restarts or 0
        self._call_timeout = call_timeout
        self._starting = starting or StartLock()
        self._restart_delay_s, self._idle_check_s = restart_delay_s, idle_check_s
        self._turns = _Turns()
        self._generation = 0
        """Number of finished restarts. A call that started in an earlier generation must not start another restart."""
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._consecutive_crashers = 0
        """Calls that crashed the engine alone since the last answer."""
        self._stopped: EngineCrashed | None = None
        """Set when the engine was closed or is not restarted any more. Every further call raises it."""

    def is_up(self) -> bool:
        return self._restarting is None and self._stopped is None and super().is_up()

    async def start(self) -> None:
        self._stopped, self._restarts_left, self._consecutive_crashers = None, self._restarts, 0
        async with self._starting.get():
            await self._engine.start()
        if self._restarts and self._idle_check_s is not None:
            self._watching = asyncio.create_task(self._watch(self._idle_check_s))

    async def close(self) -> None:
        self._stopped = EngineNotRunning(f"The {self.side} engine was closed.")
        tasks = [task for task in (self._watching, self._restarting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watching = self._restarting = None
        await self._engine.close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises `CallTimeout` or `EngineCrashedByCall` for this call, and `EngineCrashed` if the engine cannot be
        restarted."""
        return await self._with_restarts(prompt.key, lambda: self._with_timeout(prompt, sampling))

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        return await self._with_restarts(prompt.key, lambda: self._engine.truncate_thinking(prompt, thinking, sampling))

    async def _with_timeout(self, prompt: Prompt, sampling: Sampling) -> Call:
        try:
            # Before Python 3.12, asyncio.wait_for loses a cancellation at the moment the call ends (CPython #86296). A
            # worker of the scheduler that loses Ctrl-C in this way would continue with all remaining samples.
            async with asyncio.timeout(self._call_timeout):
                return await self._engine.generate(prompt, sampling)
        except TimeoutError:
            raise CallTimeout(
                f"{prompt.key}: no answer of the {self.side} engine within call_timeout={self._call_timeout:g} s. "
                "Raise call_timeout, or lower max_open_samples so that calls wait less. If the engine hangs, its log "
                "shows where."
            ) from None

    async def _with_restarts(self, key: CallKey, attempt: Callable[[], Awaitable[R]]) -> R:
        if not self._can_restart:
            return await attempt()
        call = object()
        try:
            while True:
                await self._turns.enter(call)
                if self._stopped is not None:
                    raise self._stopped
                generation = self._generation
                try:
                    answer = await attempt()
                except EngineCrashed as crash:
                    if self._stopped is not None:  # the engine was closed during the call
                        raise self._stopped from crash
                    crashes, was_alone = self._turns.crashed(call)
                    if was_alone and crashes > 1:
                        self._consecutive_crashers += 1
                        # Its first crash has used one counted restart.
                        self._restarts_left = min(self._restarts, self._restarts_left + 1)
                        await self._wait_for_restart(generation, crash, is_counted=False)
                        raise EngineCrashedByCall(
                            f"{key}: the {self.side} engine crashed {crashes} times during this call, the last time "
                            "while no other call ran. Look at the document, and at the engine's log above."
                        ) from crash
                    await self._wait_for_restart(generation, crash, is_counted=crashes == 1)
                    self._turns.leave(call, finished=False)
                else:
                    self._consecutive_crashers = 0
                    return answer
        finally:
            self._turns.leave(call, finished=True)

    async def _watch(self, seconds: float) -> None:
        """Restart the engine if it crashes while no call runs. A call that runs finds the crash itself."""
        while True:
            await asyncio.sleep(seconds)
            if self._turns.is_idle() and not self._engine.is_up():
                crash = EngineCrashed(f"The {self.side} engine stopped while it had no calls. See its log above.")
                await self._wait_for_restart(self._generation, crash, is_counted=True)

    async def _wait_for_restart(self, generation: int, crash: EngineCrashed, is_counted: bool) -> None:
        """Start a restart if no other call of this crash has started it, and wait for its end. A cancelled call does
        not stop the restart, and a restart that `close` cancels does not cancel the call."""
        if generation == self._generation and self._restarting is None and self._stopped is None:
            self._restarting = asyncio.create_task(self._restart(crash, is_counted))
        if self._restarting is not None:
            await asyncio.wait({self._restarting})

    async def _restart(self, crash: EngineCrashed, is_counted: bool) -> None:
        """Restart the engine, or set `_stopped`. A failed start uses one more restart and is tried again."""
        try:
            while (no_restart := self._why_no_restart(is_counted)) is None:
                self._restarts_left -= 1 if is_counted else 0
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
                except Exception as error:
                    reason = str(error) if isinstance(error, MaiError) else f"{type(error).__name__}: {error}"
                    crash = EngineCrashed(f"The restart of the {self.side} engine failed: {reason}")
                    is_counted = True
                    await asyncio.sleep(self._restart_delay_s)
            self._stopped = EngineCrashed(
                f"The {self.side} engine is not restarted: {no_restart} The last error: {crash}"
            )
        finally:
            self._generation += 1
            self._restarting = None

    def _why_no_restart(self, is_counted: bool) -> str | None:
        if self._consecutive_crashers >= MAX_CONSECUTIVE_CRASHERS:
            return f"it crashed on {self._consecutive_crashers} calls in a row. Fix the cause, which its log shows."
        if is_counted and self._restarts_left <= 0:
            return (
                f"no restarts left (engine_restarts={self._restarts}). Fix the cause, which its log shows, or raise "
                "engine_restarts."
            )
        return None
