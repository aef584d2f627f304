"""Crashed engines are restarted, interrupted calls are retried, and a call that crashes the engine is isolated."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from support.faults import FaultyScript
from support.samples import sample

from lmms_eval_mai.contract import Call, CallKey, Message, Prompt, Sampling
from lmms_eval_mai.engines.cancellation import wait_for
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import (
    CallTimeout,
    EngineCrashed,
    EngineCrashedByCall,
    EngineStartError,
    MaiError,
    SampleError,
)
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.scheduler import run_samples

SAMPLING = Sampling(max_tokens=8)


def prompt(number: int) -> Prompt:
    return Prompt((Message("user", (f"Question {number}",)),), CallKey("task", number, 0, "small", "short"))


class Script:
    """Answers every call after `seconds`, and counts the attempts of each call.

    `fault(number, attempt)` returns the fault of an attempt, or None.
    """

    def __init__(self, fault: Callable[[int, int], str | None], seconds: float = 0.01) -> None:
        self.attempts: Counter[int] = Counter()
        self._fault = fault
        self._seconds = seconds

    def __call__(self, prompt: Prompt) -> Answer:
        number = prompt.key.doc_id
        self.attempts[number] += 1
        fault: Any = self._fault(number, self.attempts[number])
        return Answer(f"answer {number}", seconds=self._seconds * (1 + number % 5), fault=fault)


def generate_all(script: Script, numbers: Iterable[int], restarts: int = 2) -> list[Any]:
    """Make all calls at once. Errors are returned like answers."""

    async def run() -> list[Any]:
        engine = RestartingEngine(ScriptedEngine("small", script), restarts, idle_check_s=0)
        await engine.start()
        calls = (engine.generate(prompt(number), SAMPLING) for number in numbers)
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_calls_interrupted_by_a_crash_are_retried_and_answered() -> None:
    script = Script(lambda number, attempt: "death" if (number, attempt) == (7, 1) else None)
    assert [call.text for call in generate_all(script, range(20))] == [f"answer {i}" for i in range(20)]
    assert set(script.attempts.values()) <= {1, 2}


def test_a_call_that_crashes_the_engine_fails_and_the_other_calls_are_answered() -> None:
    script = Script(lambda number, attempt: "death" if number == 7 else None)
    found = generate_all(script, range(20))
    assert isinstance(found[7], EngineCrashedByCall) and "task document 7, small short" in str(found[7])
    assert [call.text for i, call in enumerate(found) if i != 7] == [f"answer {i}" for i in range(20) if i != 7]


def test_a_single_call_that_crashes_the_engine_fails_at_the_second_crash() -> None:
    script = Script(lambda number, attempt: "death")
    (found,) = generate_all(script, [0])
    assert isinstance(found, EngineCrashedByCall) and script.attempts[0] == 2


def test_several_calls_that_crash_the_engine_are_all_isolated_and_use_no_restarts() -> None:
    crashers = {3, 11, 17}
    script = Script(lambda number, attempt: "death" if number in crashers else None)
    found = generate_all(script, range(20), restarts=1)
    assert {i for i, one in enumerate(found) if isinstance(one, EngineCrashedByCall)} == crashers
    assert all(isinstance(one, Call) for i, one in enumerate(found) if i not in crashers)


def test_an_engine_whose_crashes_no_call_explains_is_not_restarted_when_no_restarts_are_left() -> None:
    """Four groups of calls with one crash in each: two restarts are enough for two groups."""
    script = Script(lambda number, attempt: "death" if (number % 20, attempt) == (7, 1) else None)

    async def run() -> list[list[Any]]:
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=2)
        await engine.start()
        return [
            await asyncio.gather(
                *(engine.generate(prompt(number), SAMPLING) for number in range(wave, wave + 20)),
                return_exceptions=True,
            )
            for wave in (0, 20, 40, 60)
        ]

    first, second, third, fourth = asyncio.run(run())
    assert all(isinstance(one, Call) for one in first + second)
    assert any(isinstance(one, EngineCrashed) and "no restarts left (engine_restarts=2)" in str(one) for one in third)
    assert all(isinstance(one, EngineCrashed) for one in fourth)


def test_an_engine_that_crashes_on_every_call_is_given_up_after_three_isolated_calls() -> None:
    starts = 0

    class Counted(ScriptedEngine):
        async def start(self) -> None:
            nonlocal starts
            starts += 1
            await super().start()

    async def run() -> list[Any]:
        engine = RestartingEngine(Counted("small", Script(lambda number, attempt: "death")), restarts=2)
        await engine.start()
        calls = (engine.generate(prompt(number), SAMPLING) for number in range(100))
        return await asyncio.gather(*calls, return_exceptions=True)

    found = Counter(type(one) for one in asyncio.run(run()))
    assert found == {EngineCrashed: 97, EngineCrashedByCall: 3} and starts <= 8


def test_an_engine_without_restarts_left_can_be_started_again() -> None:
    async def run() -> tuple[Any, str]:
        script = Script(lambda number, attempt: "death" if attempt == 1 else None)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=0)
        await engine.start()
        (given_up,) = await asyncio.gather(engine.generate(prompt(0), SAMPLING), return_exceptions=True)
        await engine.close()
        await engine.start()
        return given_up, (await engine.generate(prompt(0), SAMPLING)).text

    given_up, answered = asyncio.run(run())
    assert isinstance(given_up, EngineCrashed) and answered == "answer 0"


def test_a_failed_restart_is_tried_again_while_restarts_are_left() -> None:
    starts = iter([True, False, True])

    class FailsOnce(ScriptedEngine):
        async def start(self) -> None:
            if not next(starts):
                raise EngineStartError("no memory yet")
            await super().start()

    async def run() -> str:
        script = Script(lambda number, attempt: "death" if attempt == 1 else None)
        engine = RestartingEngine(FailsOnce("small", script), restarts=2, restart_delay_s=0.01)
        await engine.start()
        return (await engine.generate(prompt(0), SAMPLING)).text

    assert asyncio.run(run()) == "answer 0"


def test_a_call_that_hangs_fails_at_its_timeout_and_frees_its_slot() -> None:
    async def run() -> list[Any]:
        script = Script(lambda number, attempt: "hang" if number < 2 else None)
        inner = ScriptedEngine("small", script, ScriptedOptions(slots=2))
        engine = RestartingEngine(inner, restarts=0, call_timeout=0.3)
        await engine.start()
        hanging = await asyncio.gather(
            *(engine.generate(prompt(number), SAMPLING) for number in range(2)), return_exceptions=True
        )
        return [*hanging, await engine.generate(prompt(2), SAMPLING)]

    first, second, answered = asyncio.run(run())
    assert isinstance(first, CallTimeout) and isinstance(second, CallTimeout)
    assert "task document 0, small short: no answer of the small engine within call_timeout=0.3 s" in str(first)
    assert answered.text == "answer 2"


def test_wait_for_loses_no_cancellation_at_the_moment_the_call_ends() -> None:
    """`asyncio.wait_for` loses some before Python 3.12."""

    async def call(ticks: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)

    async def run(ticks: int, moment: int) -> bool:
        inner = asyncio.ensure_future(call(ticks))
        waiting = asyncio.ensure_future(wait_for(30, inner))
        await call(moment)
        if waiting.done():
            return False
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert inner.done()
        return True

    early = [asyncio.run(run(ticks, moment)) for ticks in range(5) for moment in range(1, 8)]
    assert set(early) == {True, False}


def test_other_calls_run_after_an_interrupted_call_is_cancelled() -> None:
    async def run() -> str:
        script = Script(lambda number, attempt: "death" if (number, attempt) == (1, 1) else None, seconds=0.05)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=2)
        await engine.start()
        tasks = [asyncio.create_task(engine.generate(prompt(number), SAMPLING)) for number in range(5)]
        while script.attempts[0] < 2:  # noqa: ASYNC110 - the crash of call 1 interrupts call 0, which is retried
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (await engine.generate(prompt(9), SAMPLING)).text

    assert asyncio.run(asyncio.wait_for(run(), 20)) == "answer 9"


SAMPLES = 9000
PERMANENT = {"error_rate": 0.002, "garbage_rate": 0.02}
"""A call has the same of these faults at every attempt."""


def run_9000(
    call_timeout: float | None, hang_rate: float = 0.0, death_rate: float = 0.0
) -> tuple[dict[int, Trace], dict[int, SampleError]]:
    def texts(prompt: Prompt) -> Answer:
        key = prompt.key
        exit, large = key.doc_id % 3, "Yes" if key.doc_id % 2 else "No"
        other = "No" if large == "Yes" else "Yes"
        agrees = key.side == "large" or (key.stage == "short" and exit == 0) or (key.stage == "think" and exit == 1)
        return Answer(f"[[{large if agrees else other}]]", prompt_tokens=10, output_tokens=3, seconds=0.0001)

    def restarting_engine(side: str) -> RestartingEngine:
        script = FaultyScript(texts, seed=3, **PERMANENT, hang_rate=hang_rate, death_rate=death_rate)
        return RestartingEngine(ScriptedEngine(side, script), restarts=1000, call_timeout=call_timeout)

    traces: dict[int, Trace] = {}
    errors: dict[int, SampleError] = {}

    async def report(number: int, outcome: Trace | SampleError) -> bool:
        if isinstance(outcome, SampleError):
            errors[number] = outcome
        else:
            traces[number] = outcome
        return True

    async def run() -> None:
        pair = Pair(restarting_engine("small"), restarting_engine("large"))
        for engine in (pair.small, pair.large):
            await engine.start()
        run_one: Callable[[Sample], Awaitable[Trace]] = lambda one: cascade(one, pair)  # noqa: E731
        await run_samples(SAMPLES, lambda number: sample(doc_id=number), run_one, report, max_open=256)

    asyncio.run(run())
    return traces, errors


@pytest.mark.slow
def test_9000_samples_on_faulty_engines_are_all_answered_or_reported_as_errors() -> None:
    """Faults at random lose no sample, give no sample a wrong error, and turn no error into an answer."""
    expected_traces, expected_errors = run_9000(None)
    traces, errors = run_9000(5, hang_rate=0.0005, death_rate=0.0001)
    assert len(traces) + len(errors) == SAMPLES and not traces.keys() & errors.keys()
    kinds = Counter(type(error).__name__ for error in errors.values())
    assert 20 < len(expected_errors) < 120 and 0 < kinds["CallTimeout"] < 60 and kinds["EngineCrashedByCall"] <= 3
    # Crashes and hangs change no answer, and they fail only the calls that hung or crashed the engine.
    permanent = {number for number, error in errors.items() if type(error) is SampleError}
    others = errors.keys() - permanent
    assert permanent | (others & expected_errors.keys()) == expected_errors.keys()
    for number, trace in traces.items():
        expected = expected_traces[number]
        assert trace.exit == expected.exit and trace.answer.key.doc_id == number
        assert [call.text for call in trace.calls] == [call.text for call in expected.calls]
    noise = [trace for trace in traces.values() if any(c.text not in ("[[Yes]]", "[[No]]") for c in trace.calls)]
    assert 100 < len(noise) < 900
    assert all(not v.agree for trace in noise for v in trace.verifications if v.small is None or v.large is None)
    quiet = {number: trace for number, trace in traces.items() if trace not in noise}
    assert all(t.exit == ("agree_short", "agree_think", "transfer")[number % 3] for number, t in quiet.items())


def test_an_error_of_the_engine_ends_the_run_after_the_open_samples() -> None:
    finished: list[int] = []

    async def run_one(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        if number == 3:
            raise EngineCrashed("The small engine crashed.")
        return number

    async def report(number: int, result: int | SampleError) -> bool:
        assert not isinstance(result, SampleError)
        finished.append(number)
        return True

    with pytest.raises(MaiError, match="The small engine crashed"):
        asyncio.run(run_samples(1000, lambda number: number, run_one, report, max_open=8))
    assert set(range(8)) - {3} <= set(finished) and len(finished) < 30
