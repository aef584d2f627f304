"""The scripted engine: simulated queueing and seconds, faults, and scripts that cannot be read."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lmms_eval.utils import simple_parse_args_string
from support.engines import answer, question, started

from lmms_eval_mai.contract import Call, Engine, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, RecordedScript, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.event_loop import LoopThread
from lmms_eval_mai.run.measured_engine import MeasuredEngine


def calls_of(engine: Engine, loop: LoopThread, count: int = 1) -> list[Call]:
    """Start the engine and make this number of calls at once."""
    with started(engine, loop) as running:
        return running.generate(*(question(i) for i in range(count)))


def test_an_engine_with_one_slot_answers_one_call_after_the_other_and_reports_the_wait(loop: LoopThread) -> None:
    calls = calls_of(ScriptedEngine("small", answer, ScriptedOptions(slots=1)), loop, 4)
    waits = [call.queued_s or 0.0 for call in calls]
    assert [call.total_s - wait for call, wait in zip(calls, waits, strict=True)] == pytest.approx([0.02] * 4)
    # A timer of the event loop may end one clock tick early.
    assert all(following >= previous + 0.9 * 0.02 for previous, following in itertools.pairwise(waits))


def test_half_of_a_surrogate_pair_in_an_answer_is_replaced_because_lmms_eval_could_not_write_it(
    loop: LoopThread,
) -> None:
    (call,) = calls_of(ScriptedEngine("large", lambda prompt: Answer("It is \ud83d. [[yes]]")), loop)
    assert call.text == "It is \ufffd. [[yes]]"


def test_the_seconds_of_a_record_without_seconds_follow_equation_27(loop: LoopThread) -> None:
    options = ScriptedOptions(ttft_s=0.03, tokens_per_s=47.26, time_scale=0)
    (call,) = calls_of(ScriptedEngine("large", lambda prompt: Answer("x", output_tokens=128), options), loop)
    assert call.ttft_s == pytest.approx(0.03, abs=1e-6)
    assert call.total_s == pytest.approx(0.03 + 128 / 47.26)


def ttft(argument: Any, prompt_tokens: int) -> float:
    """Return the seconds to the first token of a call, as the engine reports them."""
    engine = ScriptedEngine(
        "large", lambda prompt: Answer("x", prompt_tokens=prompt_tokens), ScriptedOptions(ttft_s=argument, time_scale=0)
    )

    async def run() -> Call:
        await engine.start()
        return await engine.generate(question(0), Sampling(max_tokens=1))

    found = asyncio.run(run()).ttft_s
    assert found is not None
    return found


POINTS = {"300": 0.1, "100": 0.02, "200": 0.04}


@pytest.mark.parametrize(
    ("table", "prompt_tokens", "seconds"),
    [
        ("2B", 128, 0.02752),
        ("2B", 1536, 0.0498),
        ("4B", 768, 0.03902),
        ("8B", 1088, 0.09427),
        *((POINTS, tokens, 0.02) for tokens in (1, 100)),
        *((POINTS, tokens, seconds) for tokens, seconds in ((150, 0.03), (200, 0.04), (250, 0.07))),
        *((POINTS, tokens, 0.1 + (tokens - 300) * 0.0006) for tokens in (300, 400, 8192)),
    ],
)
def test_the_time_of_a_table_is_interpolated_and_beyond_the_last_point_it_continues_the_line(
    table: Any, prompt_tokens: int, seconds: float
) -> None:
    """A size is a table too: Table 3."""
    assert ttft(table, prompt_tokens) == pytest.approx(seconds)


def test_a_table_of_times_refuses_a_record_without_prompt_tokens_and_a_constant_does_not() -> None:
    with pytest.raises(SampleError, match="contract document 0, small short: large_ttft_s depends on the length"):
        ttft("8B", 0)
    assert ttft(0.03, 0) == 0.03


def test_a_table_of_times_can_be_given_as_a_model_argument() -> None:
    line = 'engine=scripted,small=a.jsonl,large=b.jsonl,small_ttft_s={"128":0.03,"1536":0.12},large_ttft_s=8B'
    config = parse(simple_parse_args_string(line))
    assert ttft(config.small.arguments["ttft_s"], 832) == pytest.approx(0.075)
    assert ttft(config.large.arguments["ttft_s"], 1280) == pytest.approx(0.10265)


RECORD = '{"task": "t", "doc_id": 0, "stage": "short", "text": "x"'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", ["Line 1", "not JSON"]),
        ('{"task": "t", "doc_id": 0, "text": "x"}', ["Line 1", "'stage'"]),
        (f'{RECORD}, "tokens": 5}}', ["Line 1", "tokens"]),
        (f"{RECORD}}}\n" * 2, ["Line 2", "second time"]),
        (f'{RECORD}, "sec": 1}}', ["Line 1", "unknown field 'sec'", "fields task, doc_id, stage, repeat, text, "]),
        (RECORD.replace("short", "shrt") + "}", ["Line 1", "'shrt' is unknown: choose one of short, think, stage2,"]),
        (f'{RECORD}, "fault": "crash"}}', ["Line 1", "fault='crash'", "death"]),
    ],
)
def test_a_script_that_cannot_be_read_is_refused_and_the_line_is_named(
    tmp_path: Path, line: str, words: list[str]
) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(line)
    with pytest.raises(ArgumentError) as error:
        RecordedScript(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_record_may_have_the_log_probabilities_of_its_answer(tmp_path: Path, loop: LoopThread) -> None:
    path = tmp_path / "script.jsonl"
    record = {"task": "contract", "doc_id": 0, "stage": "short", "text": "[[Yes]]"}
    records = [{**record, "answer_logprob": -0.7, "min_logprob": -0.5}, {**record, "doc_id": 1}]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    with_them, without = calls_of(MeasuredEngine(ScriptedEngine("small", RecordedScript(path))), loop, 2)
    assert (with_them.answer_logprob, with_them.min_logprob) == (-0.7, -0.5)
    assert (without.answer_logprob, without.min_logprob) == (None, None)


def test_a_missing_script_is_refused_and_its_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.jsonl cannot be read \(No such file or directory\)"):
        RecordedScript(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"slots": 0}, "slots=0 is invalid: expected a whole number of at least 1"),
        ({"slots": "many"}, "slots=many is invalid: expected a whole number of at least 1"),
        ({"tokens_per_s": "fast"}, "tokens_per_s=fast is invalid: expected a number of at least 0"),
        ({"time_scale": -1}, "time_scale=-1 is invalid: expected a number of at least 0"),
        ({"ttft_s": -1}, "ttft_s=-1 is invalid: expected a number of at least 0, one of 2B, 4B, 8B"),
        ({"ttft_s": "3B"}, "ttft_s=3B is invalid"),
        ({"ttft_s": {}}, r"ttft_s=\{\} is invalid"),
        ({"ttft_s": {"many": 0.1}}, "is invalid: expected"),
        ({"ttft_s": {"128": "fast", "256": 0.1}}, "is invalid: expected"),
    ],
)
def test_an_invalid_option_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ScriptedOptions(**arguments)  # type: ignore[arg-type]
