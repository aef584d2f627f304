"""An engine that dies comes back, what it had finished is not asked again, and the one call that kills it is found."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from support.samples import sample

from lmms_eval_mai.engines import restart
from lmms_eval_mai.engines.base import Call, CallKey, Message, Prompt, Sampling
from lmms_eval_mai.engines.restart import RestartingEngine
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.waiting import wait_for
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
    """Answers every call after `seconds`; a death or a hang wherever `fault` says so. Keeps what was asked."""

    def __init__(self, fault: Callable[[int, int], str | None], seconds: float = 0.01) -> None:
        self.asked: Counter[int] = Counter()
        self._fault = fault
        self._seconds = seconds

    def __call__(self, asked: Prompt) -> Answer:
        number = asked.key.doc_id
        self.asked[number] += 1
        fault: Any = self._fault(number, self.asked[number])
        return Answer(f"answer {number}", seconds=self._seconds * (1 + number % 5), fault=fault)


def ask(script: Script, numbers: Iterable[int], restarts: int = 2, **more: Any) -> list[Any]:
    """All calls at once; errors are returned like answers."""

    async def run() -> list[Any]:
        engine = RestartingEngine(ScriptedEngine("small", script), restarts, **more)
        await engine.start()
        calls = (engine.generate(prompt(number), SAMPLING) for number in numbers)
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_after_a_death_what_was_in_flight_is_asked_again_and_all_are_answered() -> None:
    script = Script(lambda number, time: "death" if (number, time) == (7, 1) else None)
    assert [call.text for call in ask(script, range(20))] == [f"answer {i}" for i in range(20)]
    assert set(script.asked.values()) <= {1, 2}


def test_the_call_that_kills_is_its_samples_error_and_the_others_are_answered() -> None:
    script = Script(lambda number, time: "death" if number == 7 else None)
    found = ask(script, range(20))
    assert isinstance(found[7], EngineCrashedByCall) and "task document 7, small short" in str(found[7])
    assert [call.text for i, call in enumerate(found) if i != 7] == [f"answer {i}" for i in range(20) if i != 7]


def test_a_call_that_kills_alone_is_found_at_the_second_death() -> None:
    script = Script(lambda number, time: "death")
    (found,) = ask(script, [0])
    assert isinstance(found, EngineCrashedByCall) and script.asked[0] == 2


def test_several_killers_are_all_found_and_cost_no_restarts() -> None:
    killers = {3, 11, 17}
    script = Script(lambda number, time: "death" if number in killers else None)
    found = ask(script, range(20), restarts=1)
    assert {i for i, one in enumerate(found) if isinstance(one, EngineCrashedByCall)} == killers
    assert all(isinstance(one, Call) for i, one in enumerate(found) if i not in killers)


def test_an_engine_that_dies_of_no_single_call_is_given_up_after_its_restarts() -> None:
    """Four waves, one death in each; two restarts see two of them through."""
    script = Script(lambda number, time: "death" if (number % 20, time) == (7, 1) else None)

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
    assert any(isinstance(one, EngineCrashed) and "of engine_restarts=2, none is left" in str(one) for one in third)
    assert all(isinstance(one, EngineCrashed) for one in fourth)


def test_an_engine_that_dies_of_everything_is_given_up_and_does_not_blame_every_sample() -> None:
    starts = 0

    class Counted(ScriptedEngine):
        async def start(self) -> None:
            nonlocal starts
            starts += 1
            await super().start()

    async def run() -> list[Any]:
        engine = RestartingEngine(Counted("small", Script(lambda number, time: "death")), restarts=2)
        await engine.start()
        calls = (engine.generate(prompt(number), SAMPLING) for number in range(100))
        return await asyncio.gather(*calls, return_exceptions=True)

    found = Counter(type(one) for one in asyncio.run(run()))
    assert found == {EngineCrashed: 97, EngineCrashedByCall: 3} and starts <= 8


def test_an_engine_that_was_given_up_can_be_started_again() -> None:
    async def run() -> tuple[Any, str]:
        script = Script(lambda number, time: "death" if time == 1 else None)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=0)
        await engine.start()
        (given_up,) = await asyncio.gather(engine.generate(prompt(0), SAMPLING), return_exceptions=True)
        await engine.close()
        await engine.start()
        return given_up, (await engine.generate(prompt(0), SAMPLING)).text

    given_up, answered = asyncio.run(run())
    assert isinstance(given_up, EngineCrashed) and answered == "answer 0"


def test_a_start_that_fails_is_tried_again_while_there_are_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "RESTART_DELAY_S", 0.01)
    fine = iter([True, False, True])

    class Late(ScriptedEngine):
        async def start(self) -> None:
            if not next(fine):
                raise EngineStartError("no memory yet")
            await super().start()

    async def run() -> str:
        script = Script(lambda number, time: "death" if time == 1 else None)
        engine = RestartingEngine(Late("small", script), restarts=2)
        await engine.start()
        return (await engine.generate(prompt(0), SAMPLING)).text

    assert asyncio.run(run()) == "answer 0"


def test_a_call_that_hangs_ends_at_its_timeout_and_frees_its_place() -> None:
    async def run() -> list[Any]:
        script = Script(lambda number, time: "hang" if number < 2 else None)
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


def test_a_cancellation_is_never_lost_however_close_the_end_of_the_call() -> None:
    """`asyncio.wait_for` loses some up to Python 3.11."""

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


def test_a_cancelled_suspect_does_not_hold_up_the_others() -> None:
    async def run() -> str:
        script = Script(lambda number, time: "death" if (number, time) == (1, 1) else None, seconds=0.05)
        engine = RestartingEngine(ScriptedEngine("small", script), restarts=2)
        await engine.start()
        tasks = [asyncio.create_task(engine.generate(prompt(number), SAMPLING)) for number in range(5)]
        while script.asked[0] < 2:  # noqa: ASYNC110 - 0 died with 1 and is asked again
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (await engine.generate(prompt(9), SAMPLING)).text

    assert asyncio.run(asyncio.wait_for(run(), 20)) == "answer 9"


SAMPLES = 9000
LASTING = {"error_rate": 0.002, "garbage_rate": 0.02, "fault_seed": 3}
"""The same call has them every time it is asked."""


def walk_9000(options: ScriptedOptions, call_timeout: float | None) -> tuple[dict[int, Trace], dict[int, SampleError]]:
    def texts(asked: Prompt) -> Answer:
        key = asked.key
        way, large = key.doc_id % 3, "Yes" if key.doc_id % 2 else "No"
        other = "No" if large == "Yes" else "Yes"
        agrees = key.side == "large" or (key.stage == "short" and way == 0) or (key.stage == "think" and way == 1)
        return Answer(f"[[{large if agrees else other}]]", prompt_tokens=10, output_tokens=3, seconds=0.0001)

    def supervised_engine(side: str) -> RestartingEngine:
        return RestartingEngine(ScriptedEngine(side, texts, options), restarts=1000, call_timeout=call_timeout)

    traces: dict[int, Trace] = {}
    errors: dict[int, SampleError] = {}

    async def report(number: int, outcome: Trace | SampleError) -> bool:
        if isinstance(outcome, SampleError):
            errors[number] = outcome
        else:
            traces[number] = outcome
        return True

    async def run() -> None:
        pair = Pair(supervised_engine("small"), supervised_engine("large"))
        for engine in (pair.small, pair.large):
            await engine.start()
        walk: Callable[[Sample], Awaitable[Trace]] = lambda one: cascade(one, pair)  # noqa: E731
        await run_samples(SAMPLES, lambda number: sample(doc_id=number), walk, report, max_open=256)

    asyncio.run(run())
    return traces, errors


def test_9000_samples_on_engines_in_trouble_are_all_answered_or_named() -> None:
    """Errors, garbage, hangs and deaths at random: none lost, none mislabelled, no error taken for an answer."""
    calm_traces, calm_errors = walk_9000(ScriptedOptions(**LASTING), None)
    traces, errors = walk_9000(ScriptedOptions(**LASTING, hang_rate=0.0005, death_rate=0.0001), 5)
    assert len(traces) + len(errors) == SAMPLES and not traces.keys() & errors.keys()
    kinds = Counter(type(error).__name__ for error in errors.values())
    assert 20 < len(calm_errors) < 120 and 0 < kinds["CallTimeout"] < 60 and kinds["EngineCrashedByCall"] <= 3
    # Deaths and hangs leave no trace in what is answered, and blame nobody but whom they hung or who killed.
    lasting = {number for number, error in errors.items() if type(error) is SampleError}
    others = errors.keys() - lasting
    assert lasting | (others & calm_errors.keys()) == calm_errors.keys()
    for number, trace in traces.items():
        calm = calm_traces[number]
        assert trace.exit == calm.exit and trace.answer.key.doc_id == number
        assert [call.text for call in trace.calls] == [call.text for call in calm.calls]
    noise = [trace for trace in traces.values() if any(c.text not in ("[[Yes]]", "[[No]]") for c in trace.calls)]
    assert 100 < len(noise) < 900
    assert all(not v.agree for trace in noise for v in trace.verifications if v.small is None or v.large is None)
    quiet = {number: trace for number, trace in traces.items() if trace not in noise}
    assert all(t.exit == ("agree_short", "agree_think", "transfer")[number % 3] for number, t in quiet.items())


def test_an_error_that_is_not_one_samples_ends_the_run_after_what_is_in_flight() -> None:
    finished: list[int] = []

    async def walk(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        if number == 3:
            raise EngineCrashed("The small engine died.")
        return number

    async def report(number: int, result: int | SampleError) -> bool:
        assert not isinstance(result, SampleError)
        finished.append(number)
        return True

    with pytest.raises(MaiError, match="The small engine died"):
        asyncio.run(run_samples(1000, lambda number: number, walk, report, max_open=8))
    assert set(range(8)) - {3} <= set(finished) and len(finished) < 30
