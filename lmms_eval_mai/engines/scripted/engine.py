"""An engine that replays recorded answers: for published answers of real models, for simulation and for tests.

It needs no model and no GPU and is deterministic. `script.py` has the answers.

Latency is simulated. A call holds one of `slots` slots for `seconds * time_scale`, so queueing, overlap and wall time
are those of a server with that many slots. If a record has no `seconds`, Eq. 27 gives them: TTFT + output tokens /
(tokens per second). The TTFT (time to the first token) is "dynamically looked up from Table 3 based on total context
length" (Appendix B.2).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmms_eval_mai.contract import Call, CallKey, EngineConfig, Identity, Prompt, Sampling
from lmms_eval_mai.engines.arguments import number, positive_int
from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.engines.scripted.script import Answer, RecordedScript, Script
from lmms_eval_mai.errors import ArgumentError, EngineCrashed, EngineNotRunning, PromptTooLong, SampleError

__all__ = ["Answer", "RecordedScript", "Script", "ScriptedEngine", "ScriptedOptions"]

TABLE_3_TOKENS = (128, 320, 512, 576, 768, 1088, 1280, 1536)
"""The total tokens of Table 3's columns: image and query."""
TABLE_3_MS = {
    "2B": (27.52, 28.005, 28.00, 27.92, 28.89, 45.96, 46.97, 49.80),
    "4B": (32.21, 32.470, 32.86, 34.66, 39.02, 65.87, 69.33, 77.86),
    "8B": (33.76, 36.495, 43.91, 47.93, 53.45, 94.27, 102.65, 115.31),
}
"""Size of the Qwen3-VL model -> milliseconds to the first token, from Table 3. Two of its columns have 320 tokens; the
value here is their mean. The paper profiled up to 8,192 tokens and prints the columns up to 1,536."""

TtftArgument = float | str | Mapping[int | str, float]
"""A number of seconds, a size of Table 3, or a table of tokens -> seconds."""


def ttft_table(argument: TtftArgument) -> dict[int, float]:
    """Return seconds by the tokens of the prompt, in increasing order of tokens. One number is a table with one entry.
    Raises `ArgumentError`."""
    if isinstance(argument, str) and argument in TABLE_3_MS:
        return {tokens: ms / 1000 for tokens, ms in zip(TABLE_3_TOKENS, TABLE_3_MS[argument], strict=True)}
    given = argument if isinstance(argument, Mapping) else {1: argument}
    try:
        table = {int(tokens): float(seconds) for tokens, seconds in given.items()}  # the keys of JSON are texts
    except (TypeError, ValueError):
        table = {}
    if not table or min(table) < 1 or not all(seconds >= 0 for seconds in table.values()):
        raise ArgumentError(
            f"ttft_s={argument} is invalid: expected a number of at least 0, one of {', '.join(TABLE_3_MS)} (Table 3), "
            'or a table of seconds by prompt tokens such as {"128": 0.03, "1536": 0.12}.'
        )
    return dict(sorted(table.items()))


def interpolate(table: Mapping[int, float], prompt_tokens: int) -> float:
    """Return the seconds for a prompt of this length, image tokens included.

    The value between two points is interpolated. The value beyond the last point continues the line of the last two
    points. A prompt that is shorter than the first point takes the time of that point.
    """
    if len(table) == 1:
        return next(iter(table.values()))
    tokens, seconds = list(table), list(table.values())
    beyond = prompt_tokens - tokens[-1]
    if beyond <= 0:
        return float(np.interp(prompt_tokens, tokens, seconds))
    slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])
    return max(0.0, seconds[-1] + slope * beyond)


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", positive_int("slots", self.slots))
        ttft_table(self.ttft_s)
        number("time_scale", self.time_scale)
        number("tokens_per_s", self.tokens_per_s)


class ScriptedEngine:
    """Answers from a script, under the contract of `Engine`."""

    def __init__(self, side: str, script: Script, options: ScriptedOptions = ScriptedOptions()) -> None:
        self.side = side
        self._script = script
        self._options = options
        self._ttft = ttft_table(options.ttft_s)
        self._slots: asyncio.Semaphore | None = None
        """None: the engine is not running."""
        self._end: asyncio.Future[str] | None = None
        """Its result is why the engine stopped. A new one at each start."""

    def validate(self) -> None:
        """Do nothing: the script was read when the engine was built."""

    def describe(self) -> str:
        return f"replays recorded answers, {self._options.slots} at a time"

    def starts_alone(self) -> bool:
        return False

    def identity(self) -> Identity:
        script = self._script
        name = getattr(script, "name", None) or getattr(script, "__qualname__", type(script).__name__)
        return {"engine": "scripted", "script": str(name)}

    def layers(self) -> int | None:
        return None  # a script has no attention weights

    async def start(self) -> None:
        self._slots = asyncio.Semaphore(self._options.slots)
        self._end = asyncio.get_running_loop().create_future()

    def is_up(self) -> bool:
        return self._slots is not None

    async def clear_caches(self) -> None:
        """Do nothing: there are no caches."""

    async def close(self) -> None:
        self._stop(f"The scripted {self.side} engine was closed.")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        slots, end = self._slots, self._end
        if slots is None or end is None:
            raise EngineNotRunning(f"The scripted {self.side} engine is not running.")
        clock = asyncio.get_running_loop()
        submitted_at = clock.time()
        answer = self._script(prompt)
        if answer.fault == "error":
            raise SampleError(
                f"{prompt.key}: the scripted {self.side} engine simulates an error in this call (fault=error in its "
                "script)."
            )
        ttft_s, total_s = self._seconds(prompt.key, answer)
        scale = self._options.time_scale
        async with slots:
            queued_s = clock.time() - submitted_at
            if answer.fault == "death" and not end.done():
                self._stop(
                    f"The scripted {self.side} engine simulates a crash in {prompt.key} (fault=death in its script)."
                )
            seconds = None if answer.fault == "hang" else total_s * scale
            if seconds == 0:
                await asyncio.sleep(0)
            elif not end.done():
                await asyncio.wait({end}, timeout=seconds)
            if end.done():
                raise EngineCrashed(end.result())
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
            answer_logprob=answer.answer_logprob,
            min_logprob=answer.min_logprob,
            queued_s=waited_s,
            ttft_s=waited_s + ttft_s,
            total_s=waited_s + total_s,
        )

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        raise PromptTooLong(f"{prompt.key}: a scripted engine has no context length, so it cannot truncate thinking.")

    def count_tokens(self, text: str) -> int | None:
        return None  # a record may have the number (`answer_tokens`)

    def _stop(self, reason: str) -> None:
        """Fail all calls in flight. The engine must be started again."""
        self._slots = None
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)

    def _seconds(self, key: CallKey, answer: Answer) -> tuple[float, float]:
        """Return the seconds to the first token and in total, as recorded or computed by Eq. 27. Raises `SampleError`
        if the record lacks the context length."""
        options, ttft_s = self._options, answer.ttft_s
        if ttft_s is None:
            if len(self._ttft) > 1 and not answer.prompt_tokens:
                raise SampleError(
                    f"{key}: {self.side}_ttft_s depends on the length of the prompt, and the record of this call has "
                    "no prompt_tokens. Add it to the record, or give ttft_s as one number."
                )
            ttft_s = interpolate(self._ttft, answer.prompt_tokens)
        if answer.seconds is not None:
            return min(ttft_s, answer.seconds), answer.seconds
        return ttft_s, ttft_s + (answer.output_tokens / options.tokens_per_s if options.tokens_per_s else 0.0)


def recorded_engine(config: EngineConfig, other: EngineConfig | None) -> ScriptedEngine:
    """Return the engine of a script file. Raises `ArgumentError` if the script cannot be read, or an argument is
    invalid."""
    options = ScriptedOptions(**config.arguments)
    return ScriptedEngine(config.side, RecordedScript(Path(config.model).expanduser()), options)
