"""An engine that replays recorded answers: for published answers of real models, for simulation and for tests.

It needs no model and no GPU and is deterministic. A call holds one of `slots` slots for `seconds * time_scale`, so
queueing, overlap and wall time are those of a server with that many slots. docs/tasks.md has the format.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from lmms_eval_mai.contract import CallPrompt, Engine, EngineConfig, Prompt, Reply, Sampling, Side
from lmms_eval_mai.engines.arguments import Arguments, Count, Number, read, sentence
from lmms_eval_mai.engines.checkpoints import file_digest
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.engines.thinking import with_thinking
from lmms_eval_mai.errors import (
    ArgumentError,
    EngineCrashed,
    EngineNotRunning,
    MissingAnswer,
    PromptTooLong,
    SampleError,
)
from lmms_eval_mai.user_input import path_of


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Answer:
    """One recorded answer, with the names of `Reply`. The engine's arguments give the times that a record lacks."""

    text: str
    thinking: str | None = None
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    image_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    answer_tokens: int | None = None
    answer_logprob: float | None = None
    ttft_s: float | None = None
    seconds: float | None = None
    fault: Literal["error", "hang", "death"] | None = None
    """error: the call fails. hang: the call never ends. death: the engine crashes, and all calls in flight fail."""


IN_REPLY = {field.name for field in dataclasses.fields(Answer)} & {field.name for field in dataclasses.fields(Reply)}
"""The fields that an answer and its reply have in common."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Record(Answer):
    """An answer and its call: one line of a file."""

    task: str
    doc_id: int
    prompt: CallPrompt
    repeat: int | None = None  # for all repeats


Script = Callable[[Prompt], Answer]
"""Returns the answer to a prompt. Raises `MissingAnswer`, or another `SampleError` to simulate a failed call."""


class RecordedScript:
    """A script from a file."""

    def __init__(self, path: Path) -> None:
        """Raises `ArgumentError` if the file or one of its lines cannot be read."""
        self._path = path
        self._answers: dict[tuple[str, int, str, int | None], Answer] = {}
        try:
            lines, self.digest = path.read_text(encoding="utf-8-sig").split("\n"), file_digest(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"The script {path} cannot be read ({error}). Give a file of JSON lines.") from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                self._add(f"Line {number} of the script {path}", line)

    def _add(self, where: str, line: str) -> None:
        try:
            given = json.loads(line)  # pydantic's parser refuses half of a surrogate pair
            record = Record(**given)
        except ValidationError as error:
            raise ArgumentError(f"{where}: {sentence(error, given)} docs/tasks.md has the fields.") from None
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{where} is not a JSON object ({error}).") from None
        key = (record.task, record.doc_id, record.prompt, record.repeat)
        if key in self._answers:
            raise ArgumentError(f"{where} answers {key[:3]} a second time. Delete one of the two lines.")
        self._answers[key] = record

    def __call__(self, prompt: Prompt) -> Answer:
        key = prompt.key
        for repeat in (key.repeat, None):
            if (answer := self._answers.get((key.task, key.doc_id, key.prompt, repeat))) is not None:
                return answer
        raise MissingAnswer(f"{key}: {self._path} has no such answer. Add it, or limit the run to recorded documents.")


class ScriptedOptions(Arguments):
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    time_scale: Number = 1.0
    """Factor for the simulated time: with 0.1, a recorded second takes 0.1 s; with 0, answers come at once. The
    reported seconds are the recorded seconds plus the time in the queue (with 0, without it)."""
    slots: Count = 256
    """Calls answered at the same time; further calls queue."""
    ttft_s: Number = 0.0
    """Seconds to the first token, for records without `ttft_s` (Table 3)."""
    tokens_per_s: Number = 0.0
    """Decoding speed, for records without `seconds` (Table 4). 0: decoding takes no time."""


class ScriptedEngine(Engine):
    def __init__(self, side: Side, script: Script, options: ScriptedOptions | None = None) -> None:
        options = options or ScriptedOptions()
        self.side = side
        self.description = f"replays recorded answers, {options.slots} at a time"
        self._script, self._options = script, options
        self._slots: asyncio.Semaphore | None = None  # None: the engine is not running
        self._end: asyncio.Future[EngineCrashed] | None = None  # why the engine stopped; a new one at each start

    def identity(self) -> str:
        script: Any = self._script
        return f"scripted {getattr(script, 'digest', None) or getattr(script, '__qualname__', type(script).__name__)}"

    def version(self) -> str:
        return "scripted"

    async def start(self) -> None:
        self._slots = asyncio.Semaphore(self._options.slots)
        self._end = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        self._stop(EngineNotRunning(f"The scripted {self.side} engine was closed."))

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        slots, end, time_scale = self._slots, self._end, self._options.time_scale
        if slots is None or end is None:
            raise EngineNotRunning(f"The scripted {self.side} engine is not running.")
        clock = asyncio.get_running_loop()
        submitted_at = clock.time()
        answer = self._script(prompt)
        if answer.fault == "error":
            raise SampleError(f"{prompt.key}: the scripted {self.side} engine simulates an error.")
        ttft_s, total_s = self._seconds(answer)
        async with slots:
            queued_s = (clock.time() - submitted_at) / time_scale if time_scale else 0.0
            if answer.fault == "death" and not end.done():
                self._stop(EngineCrashed(f"{prompt.key}: the scripted {self.side} engine simulates a crash."))
            seconds = None if answer.fault == "hang" else total_s * time_scale
            if seconds == 0:
                await asyncio.sleep(0)
            elif not end.done():
                await asyncio.wait({end}, timeout=seconds)
            if end.done():
                raise type(end.result())(str(end.result()))
        fields = {name: getattr(answer, name) for name in IN_REPLY} | {
            "text": replace_lone_surrogates(answer.text),  # lmms-eval could not write them
            "answer_logprob": answer.answer_logprob if prompt.logprobs else None,
            "ttft_s": queued_s + min(ttft_s, total_s),
        }
        reply = Reply(queued_s=queued_s, total_s=queued_s + total_s, **fields)
        return reply if reply.thinking is not None else with_thinking(reply, prompt, "")

    def _seconds(self, answer: Answer) -> tuple[float, float]:
        """Return the seconds to the first and to the last token, without those in the queue."""
        options = self._options
        ttft_s = options.ttft_s if answer.ttft_s is None else answer.ttft_s
        if answer.seconds is not None:
            return ttft_s, answer.seconds
        return ttft_s, ttft_s + (answer.output_tokens / options.tokens_per_s if options.tokens_per_s else 0.0)  # Eq. 27

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        raise PromptTooLong(f"{prompt.key}: a scripted engine has no context length, so it cannot truncate thinking.")

    def _stop(self, reason: EngineCrashed) -> None:
        """Fail all calls in flight. The engine must be started again."""
        self._slots = None
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)


def recorded_engine(config: EngineConfig, other: EngineConfig | None) -> ScriptedEngine:
    """Return the engine of a script file. Raises `ArgumentError`."""
    options = read(ScriptedOptions, config.arguments, f"{config.side}_")
    return ScriptedEngine(config.side, RecordedScript(path_of(config.model)), options)
