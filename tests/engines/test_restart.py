"""Crashed engines are restarted, interrupted calls are retried, and a call that crashes the engine is isolated."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from support.faults import FaultyScript
from support.samples import sample

from lmms_eval_mai.contract import Call, CallKey, Message, Prompt, Sampling
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


def test_a_call_with_a_timeout_loses_no_cancellation_at_the_moment_it_ends() -> None:
    """`asyncio.wait_for` loses some before Python 3.12."""

    async def turns_of_the_loop(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    class EndsAfter(ScriptedEngine):
        turns = 0

        async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
            await turns_of_the_loop(self.turns)
            return await super().generate(prompt, sampling)

    async def run(turns: int, moment: int) -> bool:
        inner = EndsAfter("small", lambda prompt: Answer("x"))
        inner.turns = turns
        engine = RestartingEngine(inner, restarts=0, call_timeout=30)
        await engine.start()
        asking = asyncio.ensure_future(engine.generate(prompt(0), SAMPLING))
        await turns_of_the_loop(moment)
        if asking.done():
            return False
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return True

    was_cancelled = [asyncio.run(run(turns, moment)) for turns in range(5) for moment in range(1, 12)]
    assert set(was_cancelled) == {True, False}


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


class CrashesInRounds(Script):
    """`calls` calls begin at once. The last of them to begin crashes the engine, and so do the retries, `crashes` times
    in all: each crash interrupts all calls."""

    def __init__(self, calls: int, crashes: int) -> None:
        last_of_round = {calls * number for number in range(1, crashes + 1)}
        super().__init__(lambda number, attempt: "death" if self.attempts.total() in last_of_round else None, 0.001)
        self.order: list[int] = []
        """The numbers of the calls in the order of their attempts."""

    def __call__(self, prompt: Prompt) -> Answer:
        self.order.append(prompt.key.doc_id)
        return super().__call__(prompt)


class Counting(ScriptedEngine):
    """Counts its starts and the calls that run."""

    def __init__(self, script: Script) -> None:
        super().__init__("small", script)
        self.starts = self.running = self.most_running = 0

    async def start(self) -> None:
        self.starts += 1
        self.most_running = 0
        await super().start()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await super().generate(prompt, sampling)
        finally:
            self.running -= 1


@pytest.mark.parametrize(("crashes", "most_running"), [(1, 200), (2, 1)])
def test_interrupted_calls_are_retried_all_together_and_after_a_second_crash_one_at_a_time(
    crashes: int, most_running: int
) -> None:
    async def run() -> int:
        inner = Counting(CrashesInRounds(200, crashes))
        engine = RestartingEngine(inner, restarts=1)
        await engine.start()
        calls = await asyncio.gather(*(engine.generate(prompt(number), SAMPLING) for number in range(200)))
        assert [call.key.doc_id for call in calls] == list(range(200)) and inner.starts == 1 + crashes
        return inner.most_running

    assert asyncio.run(run()) == most_running


@pytest.mark.parametrize("crashes", [1, 2])
def test_interrupted_calls_run_before_new_calls(crashes: int) -> None:
    async def run() -> list[int]:
        script = CrashesInRounds(5, crashes)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=1)
        await engine.start()
        calls = [asyncio.ensure_future(engine.generate(prompt(number), SAMPLING)) for number in range(5)]
        while script.attempts.total() < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        calls += [asyncio.ensure_future(engine.generate(prompt(number), SAMPLING)) for number in range(5, 8)]
        await asyncio.gather(*calls)
        return script.order

    order = asyncio.run(run())
    assert set(order[:-3]) == set(range(5)) and set(order[-3:]) == {5, 6, 7}


def test_a_call_that_crashes_twice_together_with_other_calls_is_not_taken_for_the_cause() -> None:
    assert all(isinstance(call, Call) for call in generate_all(CrashesInRounds(2, crashes=2), range(2)))


def test_an_interrupted_call_that_is_cancelled_while_it_waits_for_its_turn_lets_the_others_run() -> None:
    async def run() -> list[str]:
        script = CrashesInRounds(4, crashes=2)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=1)
        await engine.start()
        calls = [asyncio.ensure_future(engine.generate(prompt(number), SAMPLING)) for number in range(4)]
        while script.attempts.total() < 9:  # noqa: ASYNC110 - the first attempt that runs alone
            await asyncio.sleep(0)
        waiting = next(call for number, call in enumerate(calls) if script.attempts[number] == 2)
        waiting.cancel()
        new = asyncio.ensure_future(engine.generate(prompt(9), SAMPLING))
        return [call.text for call in await asyncio.gather(*(call for call in calls if call is not waiting), new)]

    assert len(asyncio.run(asyncio.wait_for(run(), 20))) == 4


class FailsCallsWhenClosed(Counting):
    """Fails the calls in flight when it is closed, as vLLM does."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._in_flight: set[asyncio.Task[Call]] = set()

    async def close(self) -> None:
        for task in self._in_flight:
            task.cancel()
        await super().close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        task = asyncio.ensure_future(super().generate(prompt, sampling))
        self._in_flight.add(task)
        await asyncio.wait({task})
        self._in_flight.discard(task)
        if task.cancelled():
            raise EngineCrashed("The engine was closed during the call.")
        return task.result()


class SlowToRestart(FailsCallsWhenClosed):
    """Takes some turns of the event loop to stop and to start."""

    async def start(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().start()

    async def close(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super().close()


@pytest.mark.parametrize("turns", range(12))
def test_calls_that_wait_for_a_restart_raise_engine_crashed_when_the_engine_is_closed(turns: int) -> None:
    """`turns`: turns of the event loop between the crash and the end, so that the restart is at each of its steps."""

    async def run() -> None:
        script = Script(lambda number, attempt: None if number == 3 else "death" if attempt == 1 else "hang")
        engine = RestartingEngine(SlowToRestart(script), restarts=2)
        await engine.start()
        calls = (engine.generate(prompt(number), SAMPLING) for number in range(3))
        asking = asyncio.gather(*calls, return_exceptions=True)
        while engine.is_up():  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.close()
        assert [type(error) for error in await asking] == [EngineCrashed] * 3
        assert not engine.is_up()
        await engine.start()
        assert engine.is_up() and (await engine.generate(prompt(3), SAMPLING)).text == "answer 3"

    asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.parametrize("crashes", [0, 1])
def test_an_engine_that_is_closed_during_a_call_is_not_restarted_and_the_call_is_not_blamed(crashes: int) -> None:
    """`crashes`: crashes of the call before. It runs alone, so after one more crash it would be the cause."""

    async def run() -> tuple[Any, int]:
        inner = FailsCallsWhenClosed(Script(lambda number, attempt: "death" if attempt <= crashes else "hang"))
        engine = RestartingEngine(inner, restarts=2)
        await engine.start()
        asking = asyncio.gather(engine.generate(prompt(0), SAMPLING), return_exceptions=True)
        while inner.starts <= crashes or not inner.running:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await engine.close()
        (error,) = await asking
        return error, inner.starts

    error, starts = asyncio.run(asyncio.wait_for(run(), 20))
    assert type(error) is EngineCrashed and starts == 1 + crashes


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
