"""Observes the calls of one request, for metrics and for streamed replies."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from lmms_eval_mai.contract import Call, CallKey, Engine, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.paper.sample_run import Pair


@dataclass(frozen=True)
class CallEvent:
    """A call to a model has begun, is done or has failed."""

    key: CallKey
    state: Literal["begun", "done", "failed"]
    call: Call | None = None
    """The finished call. None: it is not done."""
    error: MaiError | None = None


Observer = Callable[[CallEvent], None]
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
        except MaiError as error:
            self._observe(CallEvent(prompt.key, "failed", error=error))
            raise
        self._observe(CallEvent(prompt.key, "done", call))
        return call


def observed(pair: Pair, observe: Observer) -> Pair:
    """Return the pair with an observer of all its calls."""
    small, large = (engine and ObservedEngine(engine, observe) for engine in (pair.small, pair.large))
    return replace(pair, small=small, large=large)
