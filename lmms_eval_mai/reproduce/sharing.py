"""The file of finished calls that all runs of the command share, and the engine that finds calls in it.

The file has one JSON line for each call, with the digest of its model, the digest of its prompt, and the run that made
it. A call is on the disk before its answer is used.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import Call, CallKey, Engine, Prompt, Sampling
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.journal.call_records import call_of, fields_of
from lmms_eval_mai.run.journal.files import Line, line_of, record_at
from lmms_eval_mai.run.journal.journaled_engine import prompt_digest
from lmms_eval_mai.run.journal.lock import JournalInUse
from lmms_eval_mai.run.journal.writer import JournalWriter


class SharedCalls:
    """The calls that were made so far. `find` and `add` run on the event loop of the engines."""

    def __init__(self, path: Path) -> None:
        """Raises `JournalError` if the file cannot be written, or if another command writes it."""
        self.path = path
        self.run = ""
        """The run that makes the next calls."""
        self._lines: dict[tuple[str, str], Line] = {}
        """Model and prompt of a call -> its line."""
        try:
            self._writer = JournalWriter(path, self._use)
        except JournalInUse:
            raise JournalError(
                f"Another `lmms-eval-mai reproduce` writes {path}. Wait until it ends, or give another --output_path."
            ) from None
        self._end = self._writer.length

    def find(self, model: str, prompt: str) -> tuple[str, Call] | None:
        """Return the call of a prompt to a model, and the run that made it. `model`, `prompt`: their digests."""
        if (model, prompt) not in self._lines:
            return None
        record = record_at(self._lines[model, prompt])
        return record["run"], call_of(CallKey(*record["key"]), record["call"])

    async def add(self, model: str, prompt: str, call: Call) -> None:
        """Add a call of this run. The first call of a prompt is kept."""
        if (model, prompt) in self._lines:
            return
        key, fields = dataclasses.astuple(call.key), fields_of(call)
        line = line_of({"model": model, "prompt": prompt, "run": self.run, "key": key, "call": fields})
        place = Line(self._writer.file, self._end, len(line))
        self._end += len(line)  # lines are written in the order of `append`
        await self._writer.append(line)
        self._lines.setdefault((model, prompt), place)

    def close(self) -> None:
        self._writer.close()

    def _use(self, record: dict[str, Any], line: Line) -> None:
        CallKey(*record["key"])
        self._lines.setdefault((record["model"], record["prompt"]), line)


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
        run, call = self._calls.find(model, digest) or ("", None)
        if call is not None and run != self._calls.run:  # its tokens are those of this run, and its times are not
            return dataclasses.replace(
                call, key=prompt.key, shared=True, total_s=0.0, queued_s=None, ttft_s=None, started_at=None
            )
        if call is not None and call.key == prompt.key:  # this run was killed before its journal had the call
            return call
        call = await self._engine.generate(prompt, sampling)
        await self._calls.add(model, digest, call)
        return call
