"""The scripted engine: simulated queueing and seconds, faults, and scripts that cannot be read."""

import itertools
from pathlib import Path

import pytest
from support.engines import Running, answer, question

from lmms_eval_mai.engines.scripted.engine import Answer, RecordedScript, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.event_loop import LoopThread


def test_an_engine_with_one_slot_answers_one_call_after_the_other_and_reports_the_wait(loop: LoopThread) -> None:
    engine = ScriptedEngine("small", answer, ScriptedOptions(slots=1))
    loop.run(engine.start())
    calls = Running(engine, loop).generate(*(question(i) for i in range(4)))
    waits = [call.queued_s for call in calls]
    for previous, following in itertools.pairwise(calls):
        recorded_s = previous.total_s - previous.queued_s
        assert recorded_s == pytest.approx(0.02)
        # A timer of the event loop may end one clock tick early.
        assert following.queued_s >= previous.queued_s + 0.9 * recorded_s
    assert waits == sorted(waits)
    loop.run(engine.close())


def test_the_seconds_of_a_record_without_seconds_follow_equation_27(loop: LoopThread) -> None:
    options = ScriptedOptions(ttft_s=0.03, tokens_per_s=47.26, time_scale=0)
    engine = ScriptedEngine("large", lambda prompt: Answer("x", output_tokens=128), options)
    loop.run(engine.start())
    (call,) = Running(engine, loop).generate(question(0))
    assert call.ttft_s == pytest.approx(0.03, abs=1e-6)
    assert call.total_s == pytest.approx(0.03 + 128 / 47.26)


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
        ({"death_rate": 1.5}, "death_rate=1.5 is invalid: expected a number from 0 to 1"),
    ],
)
def test_an_invalid_option_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ScriptedOptions(**arguments)  # type: ignore[arg-type]
