"""The scripted engine: simulated queueing and seconds, and scripts that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.engines import LoopThread, answer, question, started

from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.scripted import ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import ArgumentError


def recorded(folder: Path, *lines: str, **arguments: Any) -> Any:
    """Return the engine of a script with these lines."""
    path = folder / "script.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return build(EngineConfig("small", "scripted", str(path), arguments))


def test_an_engine_with_one_slot_answers_one_call_after_the_other_and_reports_the_wait(loop: LoopThread) -> None:
    with started(ScriptedEngine("small", answer, ScriptedOptions(slots=1)), loop) as running:
        calls = running.generate(*map(question, range(4)))
    waits = [call.queued_s or 0.0 for call in calls]
    assert [call.total_s - wait for call, wait in zip(calls, waits, strict=True)] == pytest.approx([0.02] * 4)
    # On a busy machine the calls begin at different moments, so only the longest wait, of 0.06 s, is sure.
    assert max(waits) > 0.02


RECORD = {"task": "contract", "doc_id": 0, "prompt": "simple", "text": "x"}


def test_a_record_without_seconds_takes_those_of_equation_27_and_one_without_a_repeat_is_for_all(
    tmp_path: Path, loop: LoopThread
) -> None:
    first = {**RECORD, "text": "half a surrogate pair: \ud83d", "output_tokens": 128, "answer_logprob": -0.7}
    lines = [json.dumps(first), json.dumps({**RECORD, "repeat": 1})]
    with started(recorded(tmp_path, *lines, ttft_s=0.03, tokens_per_s=47.26, time_scale=0), loop) as running:
        (call,) = running.generate(question(0))
    assert call.text == "half a surrogate pair: \ufffd"  # lmms-eval could not write it
    assert (call.ttft_s, call.total_s) == (pytest.approx(0.03), pytest.approx(0.03 + 128 / 47.26))
    assert call.answer_logprob is None  # the prompt does not ask for it


def test_the_identity_is_that_of_the_recorded_answers(tmp_path: Path) -> None:
    first, other = json.dumps(RECORD), json.dumps({**RECORD, "text": "y"})
    assert recorded(tmp_path, first).identity() == recorded(tmp_path, first, slots=1).identity()
    assert recorded(tmp_path, first).identity() != recorded(tmp_path, other).identity()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("[1]", "Line 1"),
        (json.dumps({**RECORD, "text": None}), "text"),
        (json.dumps({**RECORD, "sec": 1}), "sec"),
        (json.dumps({**RECORD, "prompt": "smple"}), "prompt"),
        (f"{json.dumps(RECORD)}\n{json.dumps(RECORD)}", "Line 2"),
    ],
)
def test_a_script_that_cannot_be_read_is_refused_and_the_line_is_named(tmp_path: Path, line: str, word: str) -> None:
    with pytest.raises(ArgumentError, match=word):
        recorded(tmp_path, line)
