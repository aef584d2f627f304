"""An engine that replays recorded answers: for published answers of real models, simulation and tests.

It needs no model and no GPU and is deterministic. A script is a file of JSON lines, one per call
(docs/scripted-engine.md):

    {"task": "pope_s", "doc_id": 0, "stage": "short", "text": "[[Yes]]",
     "prompt_tokens": 310, "cached_tokens": 0, "output_tokens": 1, "ttft_s": 0.03, "seconds": 0.05}

Latency is simulated: a call holds one of `slots` places for `seconds * time_scale`, so that queueing, overlap
and wall time are those of a server with that many places. Where a record names no seconds they are computed as
in Eq. 27: TTFT + output tokens / (tokens per second).
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from lmms_eval_mai.engines.base import Call, CallKey, EngineConfig, Identity, Prompt, Sampling
from lmms_eval_mai.engines.checkpoints import file_digest
from lmms_eval_mai.errors import ArgumentError, EngineCrashed, MissingAnswer, PromptTooLong, SampleError

Fault = Literal["error", "hang", "death"]


@dataclass(frozen=True)
class Answer:
    """One recorded answer. Counts and seconds that a source does not publish are 0."""

    text: str
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None
    seconds: float | None = None
    fault: Fault | None = None
    """error: the call fails. hang: it never ends. death: the engine dies of it, and of it all that are in flight."""


Script = Callable[[Prompt], Answer]
"""Prompt -> answer. Raises `MissingAnswer`, or any other `SampleError` to play a failure."""


@dataclass(frozen=True)
class ScriptedOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    time_scale: float = 1.0
    """Seconds slept per recorded second; 0 answers at once. Reported seconds are the recorded ones either way."""
    slots: int = 256
    """Calls answered at the same time; further ones queue."""
    ttft_s: float = 0.0
    """Seconds to the first token of a record that names no seconds (Table 3)."""
    tokens_per_s: float = 0.0
    """Decoding speed for records that name no seconds (Table 4); 0 takes no time."""

    error_rate: float = 0.0
    """Share of calls that fail, each every time it is asked. This and the rates below play an engine in trouble."""
    garbage_rate: float = 0.0
    """Share of calls whose text is noise, each every time it is asked."""
    hang_rate: float = 0.0
    """Share of askings that never end: give `call_timeout`."""
    death_rate: float = 0.0
    """Share of askings that the engine dies of."""
    fault_seed: int = 0
    """Which calls these are follows from it and from their names."""

    def __post_init__(self) -> None:
        for name, least in (("time_scale", 0), ("slots", 1), ("ttft_s", 0), ("tokens_per_s", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name}={getattr(self, name)} is too small: give a number of at least {least}.")
        for name in RATES:
            if not 0 <= getattr(self, name) <= 1:
                raise ArgumentError(f"{name}={getattr(self, name)} is no share: give a number from 0 to 1.")

    def faulty(self) -> bool:
        return any(getattr(self, name) for name in RATES)


RATES = ("error_rate", "garbage_rate", "hang_rate", "death_rate")


class ScriptedEngine:
    """Answers from a script, under the contract of `Engine`."""

    def __init__(self, side: str, script: Script, options: ScriptedOptions = ScriptedOptions()) -> None:
        self.side = side
        self._script = FaultyScript(script, options) if options.faulty() else script
        self._source = script
        self._options = options
        self._slots: asyncio.Semaphore | None = None
        self._answering: set[asyncio.Future[None]] = set()

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "ScriptedEngine":
        """Raises `ArgumentError` if the script cannot be read or an argument is invalid."""
        try:
            options = ScriptedOptions(**config.arguments)
        except TypeError as error:
            raise ArgumentError(
                f"An argument of the scripted {config.side} engine must be a number: {dict(config.arguments)}."
            ) from error
        return cls(config.side, RecordedScript(Path(config.model).expanduser()), options)

    def validate(self) -> None:
        """Nothing to refuse: the script was read when the engine was built."""

    def describe(self) -> str:
        return f"replays recorded answers, {self._options.slots} at a time"

    def identity(self) -> Identity:
        name = getattr(self._source, "name", None) or getattr(self._source, "__qualname__", type(self._source).__name__)
        faults = {name: getattr(self._options, name) for name in (*RATES, "fault_seed")}
        return {"engine": "scripted", "script": str(name), "faults": str(faults) if self._options.faulty() else "none"}

    async def start(self) -> None:
        self._slots = asyncio.Semaphore(self._options.slots)

    async def close(self) -> None:
        self._slots = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        slots = self._running()
        asked = time.perf_counter()
        answer = self._script(prompt)
        if answer.fault == "error":
            raise SampleError(f"{prompt.key}: the scripted {self.side} engine fails here, as its script says.")
        ttft_s, total_s = self._seconds(answer)
        scale = self._options.time_scale
        async with slots:
            queued_s = time.perf_counter() - asked
            if self._slots is not slots:
                self._running()
                raise EngineCrashed(f"The scripted {self.side} engine died before {prompt.key}.")
            if answer.fault == "death":
                self._die(prompt.key)
            await self._seconds_pass(None if answer.fault == "hang" else total_s * scale)
        waited_s = queued_s / scale if scale > 0 else 0.0
        return Call(
            key=prompt.key,
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            queued_s=waited_s,
            ttft_s=waited_s + ttft_s,
            total_s=waited_s + total_s,
        )

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        raise PromptTooLong(f"{prompt.key}: a scripted engine has no context to shorten for.")

    def _running(self) -> asyncio.Semaphore:
        if self._slots is None:
            raise EngineCrashed(f"The scripted {self.side} engine is not running.")
        return self._slots

    async def _seconds_pass(self, seconds: float | None) -> None:
        """Like `asyncio.sleep`, for ever if None; a death ends it."""
        if seconds == 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        end = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _end, end)
        self._answering.add(end)
        try:
            await end
        finally:
            self._answering.discard(end)
            if timer is not None:
                timer.cancel()

    def _die(self, of: CallKey) -> None:
        death = f"The scripted {self.side} engine died of {of}, as its script says."
        self._slots = None
        for end in self._answering:
            if not end.done():
                end.set_exception(EngineCrashed(death))
        raise EngineCrashed(death)

    def _seconds(self, answer: Answer) -> tuple[float, float]:
        """(to first token, in all), as recorded or by Eq. 27."""
        options = self._options
        ttft_s = options.ttft_s if answer.ttft_s is None else answer.ttft_s
        if answer.seconds is not None:
            return min(ttft_s, answer.seconds), answer.seconds
        decoding_s = answer.output_tokens / options.tokens_per_s if options.tokens_per_s else 0.0
        return ttft_s, ttft_s + decoding_s


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class FaultyScript:
    """Another script with faults at the rates of the options. The same seed gives the same calls the same faults, in
    any order; a call that hung or killed the engine has another chance when it is asked again."""

    def __init__(self, script: Script, options: ScriptedOptions) -> None:
        self._script = script
        self._options = options
        self._asked: Counter[CallKey] = Counter()

    def __call__(self, prompt: Prompt) -> Answer:
        options, key = self._options, prompt.key
        answer = self._script(prompt)
        self._asked[key] += 1
        once = random.Random(f"{options.fault_seed} {key}")
        again = random.Random(f"{options.fault_seed} {key} {self._asked[key]}")
        if once.random() < options.error_rate:
            return replace(answer, fault="error")
        if once.random() < options.garbage_rate:
            answer = replace(answer, text=once.randbytes(once.randint(0, 200)).decode("latin-1"))
        for fault, rate in (("death", options.death_rate), ("hang", options.hang_rate)):
            if again.random() < rate:
                return replace(answer, fault=fault)  # type: ignore[arg-type]
        return answer


class RecordedScript:
    """A script read from a JSON-lines file, keyed by task, document, stage and repeat.

    A record without `repeat` serves every repeat.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"{path.name} {file_digest(path)}" if path.is_file() else path.name
        self._answers: dict[tuple[str, int, str, int | None], Answer] = {}
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                self._add(number, line)

    def _add(self, number: int, line: str) -> None:
        where = f"line {number} of {self._path}"
        try:
            record = json.loads(line)
            key = (record.pop("task"), record.pop("doc_id"), record.pop("stage"), record.pop("repeat", None))
            unknown = sorted(set(record) - set(Answer.__dataclass_fields__))
            if unknown:
                raise TypeError(f"it has no field {unknown[0]!r}")
            answer = Answer(record.pop("text"), **record)
            if answer.fault not in (None, *get_args(Fault)):
                raise TypeError(f"fault {answer.fault!r} is none of {', '.join(get_args(Fault))}")
        except json.JSONDecodeError as error:
            raise ArgumentError(f"The script's {where} is not JSON ({error}). Each line must be one object.") from None
        except KeyError as error:
            raise ArgumentError(
                f"The script's {where} lacks {error}. A record needs task, doc_id, stage and text."
            ) from None
        except (TypeError, AttributeError) as error:
            raise ArgumentError(
                f"The script's {where} cannot be read ({error}). Its fields are in docs/scripted-engine.md."
            ) from None
        if key in self._answers:
            raise ArgumentError(f"The script's {where} answers {key[:3]} a second time. Keep one of the two.")
        self._answers[key] = answer

    def __call__(self, prompt: Prompt) -> Answer:
        key: CallKey = prompt.key
        call = (key.task, key.doc_id, key.stage)
        answer = self._answers.get((*call, key.repeat)) or self._answers.get((*call, None))
        if answer is None:
            raise MissingAnswer(
                f"{self._path} has no answer for {key}: add a line with task {key.task!r}, doc_id {key.doc_id} "
                f"and stage {key.stage!r}, or limit the run to documents that are recorded."
            )
        return answer


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"The script {path} cannot be read ({getattr(error, 'strerror', None) or error}). "
            "Give the path of a JSON-lines file: small=PATH, large=PATH."
        ) from None
