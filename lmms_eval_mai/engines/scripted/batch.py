"""Simulates an engine with continuous batching: the time of a call depends on the calls that run beside it.

The engine is like vLLM. Calls that wait are prefilled together, and no other call gets a token meanwhile. Then each
decoding step gives every call one token. The times are those of a profile with the number of calls that run. So a call
alone takes the profile's time of batch size 1, and N equal calls at once take its time of batch size N.
"""

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field

from lmms_eval_mai.profiles.batch_curve import BatchCurve, CallTimes

ALMOST = 1e-6
"""Tokens and seconds that rounding may leave."""


@dataclass(eq=False, slots=True)
class BatchedCall:
    """A call that runs."""

    times: CallTimes
    later_tokens: int
    """Output tokens after the first one."""
    began_at: float
    done: "asyncio.Future[tuple[float, float]]"
    """Its result: seconds to the first token and in total."""
    ttft_s: float = 0.0
    is_running: bool = True


@dataclass(eq=False)
class Batch:
    """The calls that an engine runs at the same time. Used on one event loop."""

    curve: BatchCurve
    time_scale: float = 1.0
    """Factor for all times."""
    _running: set[BatchedCall] = field(default_factory=set)
    _waiting: list[BatchedCall] = field(default_factory=list)
    """Calls that wait for the next prefill."""
    _prefilled: list[BatchedCall] = field(default_factory=list)
    """Calls that are being prefilled."""
    _prefill_s: float = 0.0
    """The time of this prefill."""
    _decoding: list[tuple[float, int, BatchedCall]] = field(default_factory=list)
    """A heap. The first item is the value of `_steps` at which the call ends."""
    _steps: float = 0.0
    """Decoding steps since the batch was empty."""
    _step_s: float = 0.0
    """The time of one step."""
    _step_sums: list[float] = field(default_factory=list)
    """For each measured batch size, the sum of `CallTimes.step_s` over the calls that decode."""
    _number_decoding: int = 0
    _since: float = 0.0
    """When the current prefill began, or when `_steps` was counted last."""
    _timer: asyncio.TimerHandle | None = None
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    async def run(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> tuple[float, float]:
        """Return the seconds to the first token and in total, when they are over."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        times = self.curve.call(prompt_tokens, cached_tokens)
        call = BatchedCall(times, max(0, output_tokens - 1), now, loop.create_future())
        self._running.add(call)
        self._waiting.append(call)
        if not self._prefilled or now == self._since:  # otherwise it waits for the end of the prefill
            self._continue(loop)
        try:
            return await call.done
        finally:
            if call.is_running:
                self._remove(call)
                self._continue(loop)

    def fail(self, error: Exception) -> None:
        """End all calls with an error."""
        for call in self._running:
            call.is_running = False
            if not call.done.done():
                call.done.set_exception(error)
        if self._timer is not None:
            self._timer.cancel()

    def _continue(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count what was done since the last event, start what comes next, and set the timer for its end."""
        now = loop.time()
        if self._prefilled:
            self._continue_prefill(now)
        else:
            self._decode_until(now)
        if self._waiting and now == self._since:  # no prefill runs, or one that began at this very moment
            self._start_prefill()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._prefilled:
            self._timer = loop.call_at(self._since + self._prefill_s, self._continue, loop)
        elif self._decoding:
            steps = max(0.0, self._decoding[0][0] - self._steps)
            self._timer = loop.call_at(now + steps * self._step_s, self._continue, loop)

    def _start_prefill(self) -> None:
        """Add the calls that wait to the prefill that begins now."""
        self._prefilled += self._waiting
        self._waiting = []
        number = len(self._running)
        self._prefill_s = self.time_scale * sum(
            self.curve.at(call.times.prefill_s, number) / number for call in self._prefilled
        )

    def _continue_prefill(self, now: float) -> None:
        if now < self._since + self._prefill_s - ALMOST * self._prefill_s:
            return
        calls, self._prefilled = self._prefilled, []
        for call in calls:
            if not call.is_running:
                continue
            call.ttft_s = now - call.began_at
            if call.later_tokens:
                heapq.heappush(self._decoding, (self._steps + call.later_tokens, next(self._order), call))
                self._count(call, 1)
            else:
                self._end(call, now)
        self._since = now
        self._set_step()

    def _decode_until(self, now: float) -> None:
        if self._step_s:
            self._steps += (now - self._since) / self._step_s
        self._since = now
        while self._decoding and (not self._decoding[0][2].is_running or self._decoding[0][0] <= self._steps + ALMOST):
            call = heapq.heappop(self._decoding)[2]
            if call.is_running:
                self._count(call, -1)
                self._end(call, now)
        self._set_step()

    def _end(self, call: BatchedCall, now: float) -> None:
        call.is_running = False
        self._running.discard(call)
        if not call.done.done():
            scale = self.time_scale
            call.done.set_result((call.ttft_s / scale, (now - call.began_at) / scale))

    def _remove(self, call: BatchedCall) -> None:
        """Remove a call that was cancelled. Its prefill is done to its end."""
        call.is_running = False
        self._running.discard(call)
        if call in self._waiting:
            self._waiting.remove(call)
        elif call not in self._prefilled:
            self._count(call, -1)

    def _count(self, call: BatchedCall, sign: int) -> None:
        self._number_decoding += sign
        if not self._number_decoding:
            self._step_sums = []
            return
        sums = self._step_sums or [0.0] * len(self.curve.sizes)
        self._step_sums = [total + sign * one for total, one in zip(sums, call.times.step_s, strict=True)]

    def _set_step(self) -> None:
        """Compute the time of a step: the mean over the calls that decode, at their number."""
        number = self._number_decoding
        if not number:
            self._step_s, self._steps = 0.0, 0.0
            return
        self._step_s = self.time_scale * self.curve.at([total / number for total in self._step_sums], number)
