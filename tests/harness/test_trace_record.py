"""The record of a sample that lmms-eval writes with `--log_samples`."""

from dataclasses import replace
from typing import Any

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.harness.results import TraceCounts, rounds_result
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sparse import Selection

CALL = Call(CallKey("pope_r", 0, 0, "large", "task"), "A cat. [[No]]", "stop", 90, 0, 147, None, None, 4.44)


def record_of(call: Call) -> dict[str, Any]:
    """Return the record of a trace's only call."""
    (record,) = TraceCounts.of(Trace("large", call, (call,), ())).to_dict()["calls"]
    found: dict[str, Any] = record
    return found


def test_a_call_has_the_tokens_of_its_answer_and_null_if_they_are_not_known() -> None:
    assert record_of(replace(CALL, answer_tokens=1))["answer_tokens"] == 1
    assert record_of(CALL)["answer_tokens"] is None and record_of(CALL)["output_tokens"] == 147


def test_a_call_has_its_image_tokens_if_the_engine_reports_them() -> None:
    assert record_of(replace(CALL, image_tokens=64))["image_tokens"] == 64
    assert "image_tokens" not in record_of(CALL)


def test_a_call_with_an_assistant_has_its_counts_and_other_calls_do_not_have_them() -> None:
    counts = {"proposed_tokens": 131, "accepted_tokens": 108, "target_calls": 39}
    assert counts.items() <= record_of(replace(CALL, **counts)).items()
    assert not counts.keys() & record_of(CALL).keys()
    drafted = record_of(replace(CALL, proposed_tokens=0, accepted_tokens=0))  # vLLM does not report the target calls
    assert (drafted["proposed_tokens"], drafted["accepted_tokens"]) == (0, 0) and "target_calls" not in drafted


def test_a_call_has_the_time_of_its_start() -> None:
    found = record_of(replace(CALL, started_at=1_800_000_000.12345678))
    assert (found["started_at"], found["total_s"]) == (1_800_000_000.123457, 4.44) and "shared" not in found
    assert record_of(CALL)["started_at"] is None


def test_a_shared_call_is_marked_and_has_no_times() -> None:
    found = record_of(replace(CALL, shared=True, started_at=1.8e9, queued_s=0.5, ttft_s=0.7))
    assert found["shared"] is True and found["output_tokens"] == 147
    assert [found[name] for name in ("queued_s", "ttft_s", "total_s", "started_at")] == [None] * 4


def test_a_sparse_transfer_has_its_selection_and_other_samples_do_not_have_it() -> None:
    selection = Selection((2, 0), 5, 0.85, "a c", 3, 7)
    found = TraceCounts.of(Trace("transfer", CALL, (CALL,), (), selection=selection)).to_dict()["selection"]
    assert found == {
        "layer": 3,
        "scored_tokens": 5,
        "kept_tokens": 2,
        "transferred_tokens": 7,
        "share": 0.85,
        "text": "a c",
    }
    assert "selection" not in TraceCounts.of(Trace("transfer", CALL, (CALL,), ())).to_dict()


def test_token_of_the_scoring_call_is_not_a_round_of_a_two_stage_task() -> None:
    score = replace(CALL, key=replace(CALL.key, stage="score"), text="It")
    think = replace(CALL, key=replace(CALL.key, side="small", stage="think"), text="Red.")
    found = rounds_result(Trace("transfer", CALL, (think, score, CALL), ()))
    assert found.text == ["Red.", CALL.text]
