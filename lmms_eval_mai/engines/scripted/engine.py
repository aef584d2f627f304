"""An engine that replays recorded answers: for published answers of real models, for simulation and for tests.

It needs no model and no GPU and is deterministic. `script.py` has the answers.

Latency is simulated. A call holds one of `slots` slots for `seconds * time_scale`, so queueing, overlap and wall time
are those of a server with that many slots. If a record has no `seconds`, Eq. 27 gives them: TTFT + output tokens /
(tokens per second). `latency.py` has the TTFT. With `batch_profile`, the time of a call also depends on the calls that
run beside it (`batch.py`).
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lmms_eval_mai.contract import Call, CallKey, EngineConfig, Identity, Prompt, Sampling
from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.engines.scripted.batch import Batch
from lmms_eval_mai.engines.scripted.latency import Ttft, TtftArgument
from lmms_eval_mai.engines.scripted.script import Answer, FaultyScript, RecordedScript, Script
from lmms_eval_mai.errors import ArgumentError, EngineCrashed, PromptTooLong, SampleError
from lmms_eval_mai.profiles.batch_curve import BatchCurve
from lmms_eval_mai.profiles.files import read

__all__ = ["Answer", "RecordedScript", "Script", "ScriptedEngine", "ScriptedOptions"]

RATES = ("error_rate", "garbage_rate", "hang_rate", "death_rate")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class ScriptedOptions:
    """Arguments of the engine, `small_<name>` / `large_<name>` / `<name>` for both."""

    time_scale: float = 1.0
    """Factor for the simulated time: with 0.1, a recorded second takes 0.1 s; with 0, answers come at once. The
    reported seconds are the recorded seconds plus the time in the queue (with 0, without the time in the queue)."""
    slots: int = 256
    """Calls answered at the same time; further calls queue."""
    ttft_s: TtftArgument = 0.0
    """Seconds to the first token, for records without `ttft_s`: one number; `2B`, `4B` or `8B` for the times of the
    paper's Table 3; or a table of seconds by prompt tokens, such as `{"128": 0.03, "1536": 0.12}`. The tables need
    records with `prompt_tokens`."""
    tokens_per_s: float = 0.0
    """Decoding speed, for records without `seconds` (Table 4). 0: decoding takes no time."""
    batch_profile: str | None = None
    """File of `lmms-eval-mai profile` with batches. The seconds of all calls are then those of this profile with the
    number of calls that run at the same time, and the times of records, `ttft_s` and `tokens_per_s` are not used. The
    records need `prompt_tokens`."""

    error_rate: float = 0.0
    """Share of calls that fail. Such a call fails again if it is retried. This and the other rates simulate a faulty
    engine."""
    garbage_rate: float = 0.0
    """Share of calls whose text is noise. Such a call has the same noise if it is retried."""
    hang_rate: float = 0.0
    """Share of attempts that never end. It is drawn again for each attempt of a call. Set `call_timeout` with it."""
    death_rate: float = 0.0
    """Share of attempts that crash the engine. It is drawn again for each attempt of a call."""
    fault_seed: int = 0
    """Seed of the faults. The same seed gives the same faults to the same calls."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", positive_int("slots", self.slots))
        Ttft.of(self.ttft_s)
        for name in ("time_scale", "tokens_per_s"):
            if not (_is_number(value := getattr(self, name)) and value >= 0):
                raise ArgumentError(f"{name}={value} is invalid: expected a number of at least 0.")
        if not isinstance(self.batch_profile, str | None):
            raise ArgumentError(f"batch_profile={self.batch_profile} is invalid: expected the path of a profile.")
        if self.batch_profile and not self.time_scale:
            raise ArgumentError("batch_profile needs simulated time: set time_scale above 0.")
        for name in RATES:
            if not (_is_number(value := getattr(self, name)) and 0 <= value <= 1):
                raise ArgumentError(f"{name}={value} is invalid: expected a number from 0 to 1.")

    def rates(self) -> dict[str, float]:
        """Return the name and value of each fault rate."""
        return {name: getattr(self, name) for name in RATES}


class ScriptedEngine:
    """Answers from a script, under the contract of `Engine`."""

    def __init__(self, side: str, script: Script, options: ScriptedOptions = ScriptedOptions()) -> None:
        self.side = side
        rates = options.rates()
        self._has_faults = any(rates.values())
        self._script = FaultyScript(script, options.fault_seed, **rates) if self._has_faults else script
        self._source = script
        self._options = options
        self._ttft = Ttft.of(options.ttft_s)
        self._curve = BatchCurve(read(Path(options.batch_profile).expanduser())) if options.batch_profile else None
        self._batch: Batch | None = None
        """The calls that run, with `batch_profile`."""
        self._slots: asyncio.Semaphore | None = None
        """None: the engine is not running."""
        self._answering: set[asyncio.Future[None]] = set()
        """One future per call that holds a slot; its result ends the call's time."""

    @classmethod
    def from_config(cls, config: EngineConfig, other: EngineConfig | None) -> "ScriptedEngine":
        """Raises `ArgumentError` if the script or the profile cannot be read, or an argument is invalid."""
        options = ScriptedOptions(**config.arguments)
        return cls(config.side, RecordedScript(Path(config.model).expanduser()), options)

    def validate(self) -> None:
        """Do nothing: the script was read when the engine was built."""

    def describe(self) -> str:
        return f"replays recorded answers, {self._options.slots} at a time"

    def starts_alone(self) -> bool:
        return False

    def identity(self) -> Identity:
        name = getattr(self._source, "name", None) or getattr(self._source, "__qualname__", type(self._source).__name__)
        faults = {**self._options.rates(), "fault_seed": self._options.fault_seed}
        return {"engine": "scripted", "script": str(name), "faults": str(faults) if self._has_faults else "none"}

    def open_samples(self) -> int | None:
        return None

    def layers(self) -> int | None:
        return None  # a script has no attention weights

    async def start(self) -> None:
        self._slots = asyncio.Semaphore(self._options.slots)
        self._batch = None if self._curve is None else Batch(self._curve, self._options.time_scale)

    def is_up(self) -> bool:
        return self._slots is not None

    async def clear_caches(self) -> None:
        """Do nothing: there are no caches."""

    async def close(self) -> None:
        self._slots = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        slots = self._running_slots()
        clock = asyncio.get_running_loop()
        submitted_at = clock.time()
        answer = self._script(prompt)
        if answer.fault == "error":
            raise SampleError(
                f"{prompt.key}: the scripted {self.side} engine simulates an error in this call (fault=error in its "
                "script, or error_rate)."
            )
        recorded_s = None
        if self._curve is None:
            recorded_s = self._recorded_seconds(prompt.key, answer)
        else:
            self._check_length(prompt.key, answer, "batch_profile", "leave batch_profile out")
        async with slots:
            queued_s = clock.time() - submitted_at
            if self._running_slots() is not slots:
                raise EngineCrashed(f"The scripted {self.side} engine crashed before {prompt.key}.")
            if answer.fault == "death":
                self._crash(prompt.key)
            ttft_s, total_s = await self._answer(answer, recorded_s)
        scale = self._options.time_scale
        waited_s = queued_s / scale if scale > 0 else 0.0
        return Call(
            key=prompt.key,
            text=replace_lone_surrogates(answer.text),  # lmms-eval could not write them
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            image_tokens=answer.image_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            answer_tokens=answer.answer_tokens,
            queued_s=waited_s,
            ttft_s=waited_s + ttft_s,
            total_s=waited_s + total_s,
        )

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        raise PromptTooLong(f"{prompt.key}: a scripted engine has no context length, so it cannot truncate thinking.")

    def count_tokens(self, text: str) -> int | None:
        return None  # a record may have the number (`answer_tokens`)

    def _running_slots(self) -> asyncio.Semaphore:
        """Return the slots. Raises `EngineCrashed` if the engine is not running."""
        if self._slots is None:
            raise EngineCrashed(f"The scripted {self.side} engine is not running.")
        return self._slots

    async def _answer(self, answer: Answer, recorded_s: tuple[float, float] | None) -> tuple[float, float]:
        """Take the time of a call. Returns its seconds to the first token and in total. Does not end if the record has
        the fault `hang`."""
        if answer.fault == "hang":
            await self._sleep(None)
        if recorded_s is None:
            assert self._batch is not None
            return await self._batch.run(answer.prompt_tokens, answer.cached_tokens, answer.output_tokens)
        await self._sleep(recorded_s[1] * self._options.time_scale)
        return recorded_s

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep like `asyncio.sleep`, without end if `seconds` is None. A crash ends the sleep."""
        if seconds == 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        end = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _set_done, end)
        self._answering.add(end)
        try:
            await end
        finally:
            self._answering.discard(end)
            if timer is not None:
                timer.cancel()

    def _crash(self, key: CallKey) -> None:
        """Fail all calls in flight. The engine must be started again."""
        message = (
            f"The scripted {self.side} engine simulates a crash in {key} (fault=death in its script, or death_rate)."
        )
        self._slots = None
        for end in self._answering:
            if not end.done():
                end.set_exception(EngineCrashed(message))
        if self._batch is not None:
            self._batch.fail(EngineCrashed(message))
        raise EngineCrashed(message)

    def _recorded_seconds(self, key: CallKey, answer: Answer) -> tuple[float, float]:
        """Return the seconds to the first token and in total, as recorded or computed by Eq. 27. Raises `SampleError`
        if the record lacks the context length."""
        options = self._options
        ttft_s = self._computed_ttft_s(key, answer) if answer.ttft_s is None else answer.ttft_s
        if answer.seconds is not None:
            return min(ttft_s, answer.seconds), answer.seconds
        decoding_s = answer.output_tokens / options.tokens_per_s if options.tokens_per_s else 0.0
        return ttft_s, ttft_s + decoding_s

    def _computed_ttft_s(self, key: CallKey, answer: Answer) -> float:
        if not self._ttft.is_constant:
            self._check_length(key, answer, "ttft_s", "give ttft_s as one number")
        return self._ttft.seconds(answer.prompt_tokens)

    def _check_length(self, key: CallKey, answer: Answer, argument: str, remedy: str) -> None:
        """Refuse a record without the length of its prompt. Raises `SampleError`."""
        if not answer.prompt_tokens:
            raise SampleError(
                f"{key}: {self.side}_{argument} depends on the length of the prompt, and the record of this call has "
                f"no prompt_tokens. Add it to the record, or {remedy}."
            )


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
