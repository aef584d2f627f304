"""Finds greedy calls that other runs of the command made, and keeps new ones for them."""

from dataclasses import replace

from lmms_eval_mai.contract import Call, Engine, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.reproduce.shared_calls import SharedCalls
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.journal.journaled_engine import prompt_digest


class SharingEngine(EngineWrapper):
    """An engine that makes no greedy call which another run has made.

    Two documents of one run with the same prompt have two calls, as in a single lmms-eval command. So the times of a
    run stay those of its method until other runs make some of its calls. A call that is sampled is always made.
    """

    def __init__(self, engine: Engine, calls: SharedCalls) -> None:
        super().__init__(engine)
        self._calls = calls
        self._model: str | None = None
        """The digest of everything about the engine that can change an answer. None: not known before the start."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Raises the engine's errors, and `JournalError`."""
        if sampling.temperature > 0:
            return await self._engine.generate(prompt, sampling)
        model = self._model = self._model or fingerprint.digest(self.identity())
        digest = prompt_digest(prompt, sampling)
        found = self._calls.find(model, digest)
        if found is not None and found.run != self._calls.run:
            return _shared(found.call, prompt)
        if found is not None and found.call.key == prompt.key:  # this run was killed before its journal had the call
            return found.call
        call = await self._engine.generate(prompt, sampling)
        await self._calls.add(model, digest, call)
        return call


def _shared(call: Call, prompt: Prompt) -> Call:
    """Return a call of another run as a call of this one: with its tokens and without its times."""
    return replace(call, key=prompt.key, shared=True, total_s=0.0, queued_s=None, ttft_s=None, started_at=None)
