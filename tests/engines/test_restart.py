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
    EngineNotRunning,
    EngineStartError,
    MaiError,
    SampleError,
)
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.measured_engine import MeasuredEngine
from lmms_eval_mai.run.scheduler import run_samples

SAMPLING = Sampling(max_tokens=8)

Fault = Callable[[int, int], str | None]
"""Returns the fault of an attempt from the number of the call and that of the attempt, or None."""


def prompt(number: int) -> Prompt:
    return Prompt((Message("user", (f"Question {number}",)),), CallKey("task", number, 0, "small", "short"))


class Script:
    """Answers every call after `seconds`, and counts the attempts of each call."""

    def __init__(self, fault: Fault = lambda number, attempt: None, seconds: float = 0.01) -> None:
        self.attempts: Counter[int] = Counter()
        self.order: list[int] = []
        """The numbers of the calls in the order of their attempts."""
        self._fault = fault
        self._seconds = seconds

    def __call__(self, prompt: Prompt) -> Answer:
        number = prompt.key.doc_id
        self.order.append(number)
        self.attempts[number] += 1
        fault: Any = self._fault(number, self.attempts[number])
        return Answer(f"answer {number}", seconds=self._seconds * (1 + number % 5), fault=fault)


def crashes_once(number: int, attempt: int) -> str | None:
    return "death" if attempt == 1 else None


class CrashesInRounds(Script):
    """`calls` calls begin at once. The last of them to begin crashes the engine, and so do the retries, `crashes` times
    in all: each crash interrupts all calls."""

    def __init__(self, calls: int, crashes: int) -> None:
        last_of_round = {calls * number for number in range(1, crashes + 1)}
        super().__init__(lambda number, attempt: "death" if self.attempts.total() in last_of_round else None, 0.001)


class Counting(ScriptedEngine):
    """Counts its starts and the calls that run. Takes some turns of the event loop to stop and to start, and fails the
    calls in flight when it is closed, as vLLM does."""

    def __init__(self, script: Script, slots: int = 256) -> None:
        super().__init__("small", script, ScriptedOptions(slots=slots))
        self.starts = self.running = self.most_running = 0
        self.failed_starts: set[int] = set()
        """The numbers of the starts that fail."""
        self.is_dead = False
        """Whether the engine has crashed without a call that noticed it."""

    async def start(self) -> None:
        await turns_of_the_loop(3)
        self.starts += 1
        if self.starts in self.failed_starts:
            raise EngineStartError("no memory yet")
        self.most_running, self.is_dead = 0, False
        await super().start()

    async def close(self) -> None:
        await turns_of_the_loop(3)
        await super().close()

    def is_up(self) -> bool:
        return super().is_up() and not self.is_dead

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await super().generate(prompt, sampling)
        finally:
            self.running -= 1


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


Use = Callable[[RestartingEngine, Counting], Awaitable[Any]]


def with_engine(script: Script, use: Use, restarts: int = 2, slots: int = 256, **options: Any) -> Any:
    """Run `use` with a started engine and with the engine that it wraps, and return its result."""

    async def run() -> Any:
        inner = Counting(script, slots)
        engine = RestartingEngine(inner, restarts, restart_delay_s=0.01, **options)
        await engine.start()
        return await asyncio.wait_for(use(engine, inner), 30)

    return asyncio.run(run())


def calls(engine: RestartingEngine, numbers: Iterable[int]) -> list[asyncio.Task[Call]]:
    return [asyncio.ensure_future(engine.generate(prompt(number), SAMPLING)) for number in numbers]


async def answers(engine: RestartingEngine, numbers: Iterable[int]) -> list[Any]:
    """Make all calls at once. Errors are returned like answers."""
    return await asyncio.gather(*calls(engine, numbers), return_exceptions=True)


# --- crashes of calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "crashers", "last_attempt"),
    [(20, {7}, 1), (20, {7}, 99), (20, {3, 11, 17}, 99), (1, {0}, 99)],
    ids=["crashes once", "always crashes", "three always crash", "alone"],
)
def test_interrupted_calls_are_answered_and_the_calls_that_crash_the_engine_fail(
    count: int, crashers: set[int], last_attempt: int
) -> None:
    script = Script(lambda number, attempt: "death" if number in crashers and attempt <= last_attempt else None)
    found = with_engine(script, lambda engine, _: answers(engine, range(count)), restarts=1)
    failing = crashers if last_attempt > 1 else set()
    for number, one in enumerate(found):
        if number in failing:
            assert isinstance(one, EngineCrashedByCall) and f"task document {number}, small short" in str(one)
        else:
            assert one.text == f"answer {number}"
    if not failing:
        assert set(script.attempts.values()) <= {1, 2}
    if count == 1:
        assert script.attempts[0] == 2


def test_an_engine_whose_crashes_no_call_explains_is_not_restarted_when_no_restarts_are_left() -> None:
    """Four groups of calls with one crash in each: two restarts are enough for two groups."""

    async def use(engine: RestartingEngine, _: Counting) -> list[list[Any]]:
        return [await answers(engine, range(wave, wave + 20)) for wave in (0, 20, 40, 60)]

    script = Script(lambda number, attempt: "death" if (number % 20, attempt) == (7, 1) else None)
    first, second, third, fourth = with_engine(script, use)
    assert all(isinstance(one, Call) for one in first + second)
    assert any(isinstance(one, EngineCrashed) and "no restarts left (engine_restarts=2)" in str(one) for one in third)
    assert all(isinstance(one, EngineCrashed) for one in fourth)


def test_an_engine_that_crashes_on_every_call_is_given_up_after_three_isolated_calls() -> None:
    async def use(engine: RestartingEngine, inner: Counting) -> None:
        found = Counter(type(one) for one in await answers(engine, range(100)))
        assert found == {EngineCrashed: 97, EngineCrashedByCall: 3} and inner.starts <= 8

    with_engine(Script(lambda number, attempt: "death"), use)


def test_an_engine_without_restarts_left_can_be_started_again() -> None:
    async def use(engine: RestartingEngine, _: Counting) -> None:
        (given_up,) = await answers(engine, [0])
        await engine.close()
        await engine.start()
        assert type(given_up) is EngineCrashed and (await answers(engine, [0]))[0].text == "answer 0"

    with_engine(Script(crashes_once), use, restarts=0)


def test_a_failed_restart_is_tried_again_while_restarts_are_left() -> None:
    async def use(engine: RestartingEngine, inner: Counting) -> None:
        inner.failed_starts = {2}
        assert (await answers(engine, [0]))[0].text == "answer 0" and inner.starts == 3

    with_engine(Script(crashes_once), use)


@pytest.mark.parametrize(("crashes", "most_running"), [(1, 200), (2, 1)])
def test_interrupted_calls_are_retried_all_together_and_after_a_second_crash_one_at_a_time(
    crashes: int, most_running: int
) -> None:
    async def use(engine: RestartingEngine, inner: Counting) -> None:
        found = await answers(engine, range(200))
        assert [call.key.doc_id for call in found] == list(range(200)) and inner.starts == 1 + crashes
        assert inner.most_running == most_running

    with_engine(CrashesInRounds(200, crashes), use, restarts=1)


@pytest.mark.parametrize("crashes", [1, 2])
def test_interrupted_calls_run_before_new_calls(crashes: int) -> None:
    script = CrashesInRounds(5, crashes)

    async def use(engine: RestartingEngine, _: Counting) -> None:
        old = calls(engine, range(5))
        await until(lambda: script.attempts.total() >= 5)
        await asyncio.gather(*old, *calls(engine, range(5, 8)))

    with_engine(script, use, restarts=1)
    assert set(script.order[:-3]) == set(range(5)) and set(script.order[-3:]) == {5, 6, 7}


# --- calls that are cancelled, or hang ------------------------------------------------------------------------------


@pytest.mark.parametrize(("crashes", "attempts"), [(1, 5), (2, 9)], ids=["while it is retried", "before its turn"])
def test_an_interrupted_call_that_is_cancelled_lets_the_other_calls_and_new_ones_run(
    crashes: int, attempts: int
) -> None:
    script = CrashesInRounds(4, crashes)

    async def use(engine: RestartingEngine, _: Counting) -> None:
        interrupted = calls(engine, range(4))
        await until(lambda: script.attempts.total() >= attempts)
        number = next(number for number in range(4) if script.attempts[number] == 2)
        interrupted[number].cancel()
        others = [call for call in interrupted if call is not interrupted[number]]
        assert len(await asyncio.gather(*others, *calls(engine, [9]))) == 4

    with_engine(script, use, restarts=1)


def test_a_call_that_hangs_fails_at_its_timeout_and_frees_its_slot() -> None:
    async def use(engine: RestartingEngine, _: Counting) -> list[Any]:
        return [*await answers(engine, [0]), *await answers(engine, [2])]

    script = Script(lambda number, attempt: "hang" if number == 0 else None)
    error, answered = with_engine(script, use, restarts=0, slots=1, call_timeout=0.3)
    assert isinstance(error, CallTimeout)
    assert "task document 0, small short: no answer of the small engine within call_timeout=0.3 s" in str(error)
    assert answered.text == "answer 2"


def test_a_call_with_a_timeout_loses_no_cancellation_at_the_moment_it_ends() -> None:
    """`asyncio.wait_for` loses some before Python 3.12."""

    async def cancelled_after(engine: RestartingEngine, turns: int) -> bool:
        asking = asyncio.ensure_future(engine.generate(prompt(0), SAMPLING))
        await turns_of_the_loop(turns)
        if asking.done():
            return False
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return True

    async def use(engine: RestartingEngine, _: Counting) -> None:
        assert {await cancelled_after(engine, turns) for turns in range(1, 30)} == {True, False}

    with_engine(Script(seconds=0), use, restarts=0, call_timeout=30)


# --- the end of an engine, and crashes without a call -----------------------------------------------------------------


@pytest.mark.parametrize("turns", range(12))
def test_calls_that_wait_for_a_restart_end_when_the_engine_is_closed(turns: int) -> None:
    """`turns`: turns of the event loop between the crash and the end, so that the restart is at each of its steps."""

    async def use(engine: RestartingEngine, _: Counting) -> None:
        waiting = calls(engine, range(3))
        await until(lambda: not engine.is_up())
        await turns_of_the_loop(turns)
        await engine.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [EngineNotRunning] * 3
        assert not engine.is_up()
        await engine.start()
        assert engine.is_up() and (await answers(engine, [3]))[0].text == "answer 3"

    with_engine(Script(lambda number, attempt: None if number == 3 else "death" if attempt == 1 else "hang"), use)


@pytest.mark.parametrize("crashes", [0, 1])
def test_an_engine_that_is_closed_during_a_call_is_not_restarted_and_the_call_is_not_blamed(crashes: int) -> None:
    """`crashes`: crashes of the call before. It runs alone, so after one more crash it would be the cause."""

    async def use(engine: RestartingEngine, inner: Counting) -> None:
        asking = asyncio.gather(*calls(engine, [0]), return_exceptions=True)
        await until(lambda: inner.starts > crashes and inner.running > 0)
        await engine.close()
        (error,) = await asking
        assert type(error) is EngineNotRunning and inner.starts == 1 + crashes

    with_engine(Script(lambda number, attempt: "death" if attempt <= crashes else "hang"), use)


def test_an_engine_is_not_up_from_its_crash_to_the_end_of_its_restart_also_through_its_wrappers() -> None:
    async def use(engine: RestartingEngine, inner: Counting) -> None:
        measured = MeasuredEngine(engine)
        assert measured.is_up()
        asking = calls(engine, [0])[0]
        await until(lambda: not measured.is_up())
        assert not asking.done()
        await until(measured.is_up)
        assert inner.starts == 2 and (await asking).text == "answer 0"

    with_engine(Script(crashes_once), use)


def test_an_engine_that_crashes_while_no_call_runs_is_restarted_without_a_call(warnings: list[str]) -> None:
    async def use(engine: RestartingEngine, inner: Counting) -> None:
        inner.is_dead = True
        assert not engine.is_up()
        await until(engine.is_up)
        await engine.close()
        await turns_of_the_loop(20)
        assert inner.starts == 2  # a closed engine is not restarted

    with_engine(Script(), use, idle_check_s=0)
    assert "restarting the small engine" in warnings[0] and "stopped while it had no calls" in warnings[0]


def test_a_crash_during_a_call_is_left_to_the_call() -> None:
    """A restart that the check starts is always counted. One for a call that has crashed the engine twice is not."""

    async def use(engine: RestartingEngine, inner: Counting) -> None:
        (asking,) = calls(engine, [0])
        await until(lambda: inner.running > 0)
        inner.is_dead = True
        await turns_of_the_loop(50)
        asking.cancel()
        await engine.close()
        assert inner.starts == 1

    with_engine(Script(lambda number, attempt: "hang"), use, idle_check_s=0)


# --- runs on engines with faults --------------------------------------------------------------------------------------


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
