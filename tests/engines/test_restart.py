"""Crashed engines are restarted, interrupted calls are made again, and a call that crashes the engine is found."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from support.endpoints import until
from support.samples import sample

from lmms_eval_mai.contract import CallKey, Prompt, Reply, Sampling, Side
from lmms_eval_mai.engines.restart import RestartedEngine
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import (
    CallTimeout,
    EngineCrashed,
    EngineCrashedByCall,
    EngineNotRunning,
    EngineStartError,
    SampleError,
)
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.methods import MAI
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.run.scheduler import run_samples

PROMPTS = ("simple", "think", "transfer")


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Counting(ScriptedEngine):
    """Counts its starts, the attempts and the calls that run. Takes some turns of the event loop to start and stop."""

    is_alive = True

    def __init__(self, fault: Callable[[int, int], Any]) -> None:
        """`fault`: returns the fault of an attempt from the number of the call and that of the attempt, or None."""
        super().__init__("small", self.answer, ScriptedOptions(slots=256))
        self.fault = fault
        self.attempts: Counter[int] = Counter()
        self.order: list[int] = []  # the numbers of the calls, one for each attempt
        self.starts = self.running = self.most_running = 0
        self.failed_starts: set[int] = set()  # the numbers of the starts that fail
        self.is_stuck = False

    def answer(self, prompt: Prompt) -> Answer:
        number = prompt.key.doc_id
        self.attempts[number] += 1
        self.order.append(number)
        return Answer(f"answer {number}", seconds=0.001, fault=self.fault(number, self.attempts[number]))

    async def start(self) -> None:
        await turns_of_the_loop(3)
        self.starts += 1
        if self.starts in self.failed_starts:
            raise EngineStartError("no memory yet")
        self.most_running = 0
        await super().start()
        self.is_alive = True

    async def close(self) -> None:
        await turns_of_the_loop(3)
        if self.is_stuck:
            raise OSError("a process does not end")
        await super().close()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await super().generate(prompt, sampling)
        finally:
            self.running -= 1


def in_rounds(calls: int, crashes: int) -> Counting:
    """Return an engine that the last of `calls` calls at once crashes, and so does the last of those that are made
    again, `crashes` times in all: each crash interrupts all calls."""
    engine = Counting(lambda *_: "death" if len(engine.order) in range(calls, calls * crashes + 1, calls) else None)
    return engine


def with_engine(inner: Counting, use: Callable[[RestartedEngine], Awaitable[Any]], restarts: int = 2) -> Any:
    """Run `use` with a started engine, and return its result."""

    async def run() -> Any:
        engine = RestartedEngine(inner, restarts, call_timeout=2, delay_s=0.01)
        await engine.start()
        return await asyncio.wait_for(use(engine), 60)

    return asyncio.run(run())


def call(engine: RestartedEngine, number: int) -> Awaitable[Reply]:
    return engine.generate(Prompt((), CallKey("task", number, 0, "small", "simple")), Sampling(8))


async def answers(engine: RestartedEngine, numbers: Iterable[int]) -> list[Any]:
    """Make all calls at once. Errors are returned like answers."""
    return await asyncio.gather(*(call(engine, number) for number in numbers), return_exceptions=True)


def types(found: Iterable[Any]) -> Counter[type]:
    return Counter(map(type, found))


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize(
    ("count", "crashers", "last_attempt"),
    [(20, {7}, 1), (20, {7}, 99), (20, {3, 11, 17}, 99), (1, {0}, 99)],
)
def test_interrupted_calls_are_answered_and_the_calls_that_crash_the_engine_alone_fail_and_use_no_restart(
    count: int, crashers: set[int], last_attempt: int, restarts: int
) -> None:
    failing = crashers if last_attempt > 1 else set()

    async def use(engine: RestartedEngine) -> None:
        for _ in range(4 if failing else 1):
            for number, outcome in enumerate(await answers(engine, range(count))):
                is_cause = isinstance(outcome, EngineCrashedByCall)
                assert is_cause if number in failing else outcome.text == f"answer {number}"
            await call(engine, 50)  # an answer: the engine is not broken

    inner = Counting(lambda number, attempt: "death" if number in crashers and attempt <= last_attempt else None)
    with_engine(inner, use, restarts)


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_engine_that_dies_without_work_is_started_again_once_or_given_up(restarts: int) -> None:
    async def use(engine: RestartedEngine) -> Any:
        assert not engine.has_died and engine.given_up is None
        inner.is_alive = False
        assert engine.has_died
        await asyncio.gather(*(engine.restart_if_dead() for _ in range(3)))
        assert not engine.is_up
        outcomes = types(await answers(engine, range(5)))
        return outcomes, type(engine.given_up)

    inner = Counting(lambda number, attempt: None)
    outcomes, given_up = with_engine(inner, use, restarts)
    assert inner.starts == 1 + restarts
    assert (outcomes, given_up) == (({Reply: 5}, type(None)) if restarts else ({EngineCrashed: 5}, EngineCrashed))


def test_an_engine_whose_crashes_no_call_explains_is_not_restarted_when_no_restarts_are_left() -> None:
    async def use(engine: RestartedEngine) -> Any:
        found = [types(await answers(engine, range(wave, wave + 20))) for wave in (0, 20, 40, 60)]
        assert inner.starts == 3 and not engine.is_up
        await engine.close()
        await engine.start()
        return [*found, types(await answers(engine, range(60, 80)))]

    inner = Counting(lambda number, attempt: "death" if (number % 20, attempt) == (7, 1) else None)
    first, second, third, fourth, fifth = with_engine(inner, use, 2)
    assert first == second == fifth == {Reply: 20} and third[EngineCrashed] > 0 and fourth == {EngineCrashed: 20}


def test_an_engine_that_crashes_on_every_call_is_given_up_after_three_calls() -> None:
    inner = Counting(lambda number, attempt: "death")
    found = with_engine(inner, lambda engine: answers(engine, range(100)))
    assert types(found) == {EngineCrashed: 97, EngineCrashedByCall: 3} and inner.starts <= 9


@pytest.mark.parametrize(
    ("restarts", "failed", "is_stuck", "expected"),
    [(2, {2}, False, Reply), (2, {2, 3}, False, EngineCrashed), (0, set(), False, EngineCrashed),
     (1, set(), True, Reply)],
)  # fmt: skip
def test_a_failed_restart_is_tried_again_while_restarts_are_left_also_if_the_engine_does_not_stop_cleanly(
    restarts: int, failed: set[int], is_stuck: bool, expected: type
) -> None:
    inner = Counting(lambda number, attempt: "death" if attempt == 1 else None)
    inner.failed_starts, inner.is_stuck = failed, is_stuck
    assert types(with_engine(inner, lambda engine: answers(engine, [0]), restarts)) == {expected: 1}
    assert inner.starts == 1 + restarts


@pytest.mark.parametrize(("crashes", "most_running"), [(1, 100), (2, 1)])
def test_interrupted_calls_are_made_again_before_new_ones_all_together_and_after_a_second_crash_one_at_a_time(
    crashes: int, most_running: int
) -> None:
    inner = in_rounds(100, crashes)

    async def use(engine: RestartedEngine) -> None:
        old = asyncio.ensure_future(answers(engine, range(100)))
        await until(lambda: len(inner.order) == 100)
        new = asyncio.ensure_future(call(engine, 100))
        assert types(await old) == {Reply: 100} and (await new).text == "answer 100"
        assert inner.starts == 1 + crashes and inner.most_running == most_running
        assert inner.order[-1] == 100 and len(inner.order) == 101 + 100 * crashes

    with_engine(inner, use, 1)


@pytest.mark.parametrize(("crashes", "attempts"), [(1, 5), (2, 9)], ids=["while it is made again", "before its turn"])
def test_an_interrupted_call_that_is_cancelled_lets_all_others_run(crashes: int, attempts: int) -> None:
    inner = in_rounds(4, crashes)

    async def use(engine: RestartedEngine) -> None:
        calls = [asyncio.ensure_future(call(engine, number)) for number in range(4)]
        await until(lambda: len(inner.order) >= attempts)
        cancelled = calls.pop(next(number for number in range(4) if inner.attempts[number] == 2))
        cancelled.cancel()
        assert len(await asyncio.gather(*calls, call(engine, 9))) == 4

    with_engine(inner, use, 1)


@pytest.mark.parametrize("crashes", [0, 1, 2])
@pytest.mark.parametrize("turns", range(12))
def test_all_calls_end_when_the_engine_is_closed_and_none_is_blamed(crashes: int, turns: int) -> None:
    """`turns`: turns of the event loop between the last crash and the end, so that a restart is at each of its steps.
    After two crashes a call runs alone."""
    inner = Counting(lambda number, attempt: None if number == 3 else "death" if attempt <= crashes else "hang")

    async def use(engine: RestartedEngine) -> None:
        calling = asyncio.ensure_future(answers(engine, range(3)))
        await until(lambda: inner.attempts[0] >= max(crashes, 1))
        await turns_of_the_loop(turns)
        await engine.close()
        assert types(await calling) == {EngineNotRunning: 3} and not engine.is_up
        await engine.start()
        assert engine.is_up and types(await answers(engine, [3])) == {Reply: 1}

    with_engine(inner, use)


@pytest.mark.slow
def test_a_call_that_hangs_fails_at_its_timeout_and_frees_its_slot() -> None:
    async def use(engine: RestartedEngine) -> list[Any]:
        return [*await answers(engine, range(256)), *await answers(engine, [256])]

    inner = Counting(lambda number, attempt: "hang" if number < 256 else None)
    assert types(with_engine(inner, use, 0)) == {CallTimeout: 256, Reply: 1}


def cascade_script(prompt: Prompt) -> Answer:
    """A script in which the samples leave at the three exits in turn, and some calls have faults. A call that fails, or
    whose text is noise, does so at every attempt. A crash and a call that never ends are drawn for each attempt."""
    key = prompt.key
    per_call = random.Random(str(key))
    attempt = random.random()
    small = "No" if key.side == "small" and key.doc_id % 3 >= PROMPTS.index(key.prompt) + 1 else "Yes"
    text = per_call.randbytes(50).decode("latin-1") if per_call.random() < 0.02 else f"[[{small}]]"
    fault = "error" if per_call.random() < 0.006 else "death" if attempt < 3e-4 else "hang" if attempt < 2e-3 else None
    return Answer(text, fault=fault)  # type: ignore[arg-type]


@pytest.mark.slow
def test_3000_samples_on_faulty_engines_are_all_answered_or_reported_as_errors() -> None:
    outcomes: dict[int, Any] = {}

    async def report(number: int, outcome: Trace | SampleError) -> bool:
        assert number not in outcomes
        outcomes[number] = outcome
        return True

    async def run() -> None:
        sides: tuple[Side, Side] = ("small", "large")
        models = {side: RestartedEngine(ScriptedEngine(side, cascade_script), 1000, 3) for side in sides}
        for model in models.values():
            await model.start()
        pair = Pair(models)
        await run_samples(range(3000), lambda i: sample(doc_id=i), lambda each: run_sample(each, pair), report, 256)

    asyncio.run(run())
    errors = types(outcome for outcome in outcomes.values() if not isinstance(outcome, Trace))
    assert len(outcomes) == 3000 and errors[SampleError] > 20 and errors[CallTimeout] > 0
    assert errors.total() < 250 and errors[EngineCrashedByCall] <= 3
    compared = {stop.exit: {*stop.agree} for stop in MAI.stops}
    for number, trace in outcomes.items():
        if isinstance(trace, Trace):
            assert {call.key.doc_id for call in trace.calls} == {number}
            noise = [call for call in trace.calls if call.text not in ("[[Yes]]", "[[No]]")]
            assert noise or trace.exit == ("agree_short", "agree_think", "transfer")[number % 3]
            unreadable = {call.key.name for call in trace.calls if call.parsed is None}
            assert not unreadable & compared[trace.exit]


def test_an_error_of_the_engine_ends_the_run_after_the_open_samples() -> None:
    finished: set[int] = set()

    async def run_one(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        if number == 3:
            raise EngineCrashed("The small engine crashed.")
        return number

    async def report(number: int, outcome: Any) -> bool:
        finished.add(number)
        return True

    with pytest.raises(EngineCrashed):
        asyncio.run(run_samples(range(1000), lambda number: number, run_one, report, max_open=8))
    assert {*range(8)} - {3} <= finished and len(finished) < 30
