"""The scripted engine with `batch_profile`: the time of a call depends on the calls that run beside it."""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.engines import question
from support.profiles import TINY

from lmms_eval_mai.contract import Call, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.scripted.virtual_time import VirtualTimeLoop
from lmms_eval_mai.errors import ArgumentError, EngineCrashed, SampleError
from lmms_eval_mai.profiles.files import write
from lmms_eval_mai.profiles.profile import BatchPoint, Seconds

FIRST_S = {1: 0.05, 8: 0.2, 32: 0.7}
WHOLE_S = {1: 0.35, 8: 0.8, 32: 1.9}
"""Batch size -> seconds of prompts of 100 tokens, with 1 and with 16 output tokens."""
BATCHED = dataclasses.replace(
    TINY,
    batches=tuple(BatchPoint(n, 64, 4, 96, 16, Seconds(FIRST_S[n]), Seconds(WHOLE_S[n])) for n in FIRST_S),
)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(BATCHED, tmp_path))


def call_at(start_s: float, output_tokens: int, prompt_tokens: int = 100, **more: object) -> tuple[float, Answer]:
    return start_s, Answer("x", prompt_tokens=prompt_tokens, output_tokens=output_tokens, **more)  # type: ignore[arg-type]


def simulate(file: str, plan: Sequence[tuple[float, Answer]], **options: object) -> list[Call | BaseException]:
    """Make each call at its time, and return the results."""
    answers = [answer for _, answer in plan]
    options = {"batch_profile": file, **options}
    engine = ScriptedEngine("small", lambda prompt: answers[prompt.key.doc_id], ScriptedOptions(**options))  # type: ignore[arg-type]

    async def make(number: int, start_s: float) -> Call:
        await asyncio.sleep(start_s)
        return await engine.generate(question(number), Sampling(max_tokens=1))

    async def make_all() -> list[Call | BaseException]:
        await engine.start()
        calls = (make(number, start_s) for number, (start_s, _) in enumerate(plan))
        return await asyncio.gather(*calls, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(make_all())


def times(results: Sequence[Call | BaseException]) -> list[tuple[float, float]]:
    found = []
    for call in results:
        assert isinstance(call, Call) and call.ttft_s is not None, call
        found.append((call.ttft_s, call.total_s))
    return found


@pytest.mark.parametrize("number", FIRST_S)
@pytest.mark.parametrize("output_tokens", [1, 16, 31])
def test_calls_made_at_once_take_the_time_of_their_batch_size_in_the_profile(
    file: str, number: int, output_tokens: int
) -> None:
    found = times(simulate(file, [call_at(0, output_tokens)] * number))
    whole_s = FIRST_S[number] + (output_tokens - 1) * (WHOLE_S[number] - FIRST_S[number]) / 15
    assert found == [(pytest.approx(FIRST_S[number]), pytest.approx(whole_s))] * number


def test_calls_made_one_after_another_take_the_time_of_batch_size_1(file: str) -> None:
    found = times(simulate(file, [call_at(second, 16) for second in range(5)]))
    assert found == [(pytest.approx(FIRST_S[1]), pytest.approx(WHOLE_S[1]))] * 5


def test_between_measured_batch_sizes_the_time_is_interpolated(file: str) -> None:
    ((first_s, whole_s), *_) = times(simulate(file, [call_at(0, 16)] * 20))
    assert (first_s, whole_s) == (pytest.approx(0.45), pytest.approx(1.35))


def test_a_batch_larger_than_all_measured_ones_is_on_the_line_of_the_last_two(file: str) -> None:
    ((first_s, _), *_) = times(simulate(file, [call_at(0, 16)] * 56))
    assert first_s == pytest.approx(1.2)


def test_a_call_beside_others_stops_their_decoding_for_its_prefill_and_slows_their_steps(tmp_path: Path) -> None:
    points = tuple(BatchPoint(n, 64, 4, 96, 11, Seconds(0.1 * n), Seconds(0.1 * n + 1.0 * n)) for n in (1, 2))
    file = str(write(dataclasses.replace(TINY, batches=points), tmp_path))  # a step of n calls takes n * 0.1 s
    first, second = times(simulate(file, [call_at(0, 11), call_at(0.6, 3)]))
    # The first call has 5 later tokens at 0.6 s. Then 0.1 s of prefill, 2 steps of 0.2 s, and 3 steps of 0.1 s.
    assert second == (pytest.approx(0.1), pytest.approx(0.5))
    assert first == (pytest.approx(0.1), pytest.approx(0.6 + 0.1 + 2 * 0.2 + 3 * 0.1))


def test_cached_prompt_tokens_need_no_prefill(file: str) -> None:
    plain, cached = (times(simulate(file, [call_at(0, 16, cached_tokens=tokens)]))[0] for tokens in (0, 75))
    assert cached[0] == pytest.approx(plain[0] / 4)
    assert cached[1] - cached[0] == pytest.approx(plain[1] - plain[0])


def test_calls_beyond_the_slots_wait_and_run_with_those_that_still_run(file: str) -> None:
    found = times(simulate(file, [call_at(0, 16)] * 2, slots=1))
    assert found == [
        (pytest.approx(0.05), pytest.approx(0.35)),
        (pytest.approx(0.35 + 0.05), pytest.approx(0.7)),  # with its time in the queue
    ]


def test_the_time_scale_changes_the_simulated_wait_and_not_the_reported_seconds(file: str) -> None:
    plan = [call_at(0, 16), call_at(0, 30), call_at(0.01, 5)]
    whole = times(simulate(file, plan))
    tenth = times(simulate(file, [(second / 10, answer) for second, answer in plan], time_scale=0.1))
    assert tenth == [(pytest.approx(first), pytest.approx(total)) for first, total in whole]


def test_a_cancelled_call_leaves_the_batch(file: str) -> None:
    answer = Answer("x", prompt_tokens=100, output_tokens=151)
    engine = ScriptedEngine("small", lambda prompt: answer, ScriptedOptions(batch_profile=file))

    async def cancel_one(after_s: float) -> float:
        await engine.start()
        tasks = [asyncio.create_task(engine.generate(question(n), Sampling(max_tokens=1))) for n in range(8)]
        await asyncio.sleep(after_s)
        for task in tasks[1:]:
            task.cancel()
        return (await tasks[0]).total_s

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        # 7 of 8 calls leave after 100 of 150 steps, or during the prefill, which goes on.
        assert runner.run(cancel_one(0.2 + 100 * 0.04)) == pytest.approx(0.2 + 100 * 0.04 + 50 * 0.02)
        assert runner.run(cancel_one(0.1)) == pytest.approx(0.2 + 150 * 0.02)


def test_a_crash_ends_all_calls_of_the_batch(file: str) -> None:
    found = simulate(file, [call_at(0, 1000), call_at(0, 1000), call_at(1, 1, fault="death"), call_at(0, 1)])
    assert [type(one) for one in found] == [EngineCrashed, EngineCrashed, EngineCrashed, Call]


def test_a_profile_without_batches_is_refused(tmp_path: Path) -> None:
    path = write(dataclasses.replace(TINY, batches=()), tmp_path)
    with pytest.raises(ArgumentError, match=r"profile-tiny-A-CPU-2-cores.json has no measurements of batches"):
        ScriptedEngine("small", lambda prompt: Answer("x"), ScriptedOptions(batch_profile=str(path)))


def test_records_without_the_length_of_the_prompt_are_refused(file: str) -> None:
    (error,) = simulate(file, [call_at(0, 16, prompt_tokens=0)])
    assert isinstance(error, SampleError)
    assert "small_batch_profile depends on the length of the prompt, and the record of this call has no" in str(error)


def test_simulated_batches_need_a_time_scale() -> None:
    with pytest.raises(ArgumentError, match="batch_profile needs simulated time: set time_scale above 0"):
        ScriptedOptions(batch_profile="x.json", time_scale=0)
