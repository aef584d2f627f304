"""Adds to each call the time at which it was made, for all kinds of engines in the same way."""

import time
from dataclasses import replace

from lmms_eval_mai.engines.base import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper


class TimedEngine(EngineWrapper[Engine]):
    """An engine whose calls have the time at which they started."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises the engine's errors."""
        call = await self._engine.generate(prompt, sampling)
        # From the end, because a call that was retried began with its last attempt.
        return replace(call, started_at=time.time() - call.total_s)
