"""Observes the calls of requests, for streamed replies and for the metrics in Prometheus' format."""

import functools
import time
from collections import Counter as Numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lmms_eval_mai.contract import Call, CallKey, Engine, Prompt, Sampling, Side
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.serve.limits import Admission

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper limits of the classes of seconds."""


@dataclass(frozen=True)
class CallEvent:
    """A call to a model has begun, is done or has failed. A cancelled call has failed too."""

    key: CallKey
    state: Literal["begun", "done", "failed"]
    call: Call | None = None
    """The finished call. None: it is not done."""
    error: BaseException | None = None


Observer = Callable[[CallEvent], object]
"""Gets the events of a request in the thread of the engines' event loop."""


class ObservedEngine(EngineWrapper):
    """An engine that tells an observer about its calls."""

    def __init__(self, engine: Engine, observe: Observer) -> None:
        super().__init__(engine)
        self._observe = observe

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        self._observe(CallEvent(prompt.key, "begun"))
        try:
            call = await self._engine.generate(prompt, sampling)
        except BaseException as error:
            self._observe(CallEvent(prompt.key, "failed", error=error))
            raise
        self._observe(CallEvent(prompt.key, "done", call))
        return call


def observed(pair: Pair, observe: Observer) -> Pair:
    """Return the pair with an observer of all its calls."""
    small, large = (engine and ObservedEngine(engine, observe) for engine in (pair.small, pair.large))
    return replace(pair, small=small, large=large)


class Metrics:
    """Counts requests, calls, tokens and errors. All methods may be called from any thread."""

    def __init__(self, admission: Admission, sides: Iterable[Side], up: Callable[[], Mapping[Side, bool]]) -> None:
        """`up`: returns for each of the sides whether its engine answers calls."""
        self._registry = registry = CollectorRegistry()
        self._replies = Counter("mai_replies", "Replies by status.", ["status"], registry=registry)
        self._exits = Counter("mai_exits", "Answered questions by exit.", ["mode", "exit"], registry=registry)
        self._request_s = Histogram(
            "mai_request_seconds", "Seconds of answered requests.", ["exit"], buckets=SECONDS, registry=registry
        )
        self._call_s = Histogram(
            "mai_call_seconds", "Seconds of calls.", ["side", "stage"], buckets=SECONDS, registry=registry
        )
        self._tokens = Counter("mai_tokens", "Tokens of calls.", ["side", "kind"], registry=registry)
        self._errors = Counter("mai_errors", "Failed calls.", ["side", "error"], registry=registry)
        open_now = Gauge("mai_requests", "Requests now: answered, or in the queue.", ["state"], registry=registry)
        open_now.labels("open").set_function(lambda: min(admission.count, admission.max_open))
        open_now.labels("queued").set_function(lambda: max(0, admission.count - admission.max_open))
        engines = Gauge("mai_engine_up", "Whether the engine answers calls.", ["side"], registry=registry)
        for side in sides:
            engines.labels(side).set_function(functools.partial(lambda side: float(up()[side]), side))

        self._running: Numbers[Side] = Numbers()
        """Calls of each side that have not ended."""
        self._answered_at: dict[Side, float] = {}
        """When each side last answered a call, or got one while it had none."""

    def silent_s(self, side: Side) -> float:
        """Return for how many seconds a side has had calls without answering any. 0 if it has no calls."""
        return time.monotonic() - self._answered_at[side] if self._running[side] else 0.0

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return generate_latest(self._registry)

    def replied(self, status: int) -> None:
        """Count a reply."""
        self._replies.labels(str(status)).inc()

    def answered(self, mode: str, trace: Trace, seconds: float) -> None:
        """Count an answered question. `seconds`: from its admission to its answer."""
        self._exits.labels(mode, trace.exit).inc()
        self._request_s.labels(trace.exit).observe(seconds)

    def observe(self, event: CallEvent) -> None:
        """Count a call that has begun, is done or has failed."""
        key, call = event.key, event.call
        if event.state == "done" or (event.state == "begun" and not self._running[key.side]):
            self._answered_at[key.side] = time.monotonic()
        self._running[key.side] += 1 if event.state == "begun" else -1
        if isinstance(event.error, MaiError):
            self._errors.labels(key.side, type(event.error).__name__).inc()
        if call is not None:
            self._call_s.labels(key.side, key.stage).observe(call.total_s)
            self._tokens.labels(key.side, "prompt").inc(call.prompt_tokens)
            self._tokens.labels(key.side, "cached").inc(call.cached_tokens)
            self._tokens.labels(key.side, "output").inc(call.output_tokens)
