"""The record of a sample that lmms-eval writes with `--log_samples`."""

from dataclasses import replace
from typing import Any

import pytest

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.harness.results import TraceCounts, rounds_result
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sparse import Selection

SPECULATED = {"proposed_tokens": 131, "accepted_tokens": 108, "target_calls": 39}
CALL = Call(CallKey("pope_r", 0, 0, "large", "task"), "A cat. [[No]]", "stop", 90, 0, 147, None, None, 4.44)


@pytest.mark.parametrize(
    ("fields", "found", "missing"),
    [
        (
            {},
            {"answer_tokens": None, "output_tokens": 147, "started_at": None},
            {"image_tokens", "shared", *SPECULATED},
        ),
        ({"answer_tokens": 1, "image_tokens": 64}, {"answer_tokens": 1, "image_tokens": 64}, {"shared"}),
        (SPECULATED, SPECULATED, set()),
        # vLLM does not report the target calls.
        ({"proposed_tokens": 0, "accepted_tokens": 0}, {"proposed_tokens": 0, "accepted_tokens": 0}, {"target_calls"}),
        ({"started_at": 1_800_000_000.12345678}, {"started_at": 1_800_000_000.123457, "total_s": 4.44}, set()),
        (
            {"shared": True, "started_at": 1.8e9, "queued_s": 0.5, "ttft_s": 0.7},
            {"shared": True, **dict.fromkeys(("queued_s", "ttft_s", "total_s", "started_at"))},
            set(),
        ),
    ],
)
def test_a_call_has_the_figures_that_its_engine_reports(
    fields: dict[str, Any], found: dict[str, Any], missing: set[str]
) -> None:
    call = replace(CALL, **fields)
    (record,) = TraceCounts.of(Trace("large", call, (call,), ())).to_dict()["calls"]
    assert found.items() <= record.items() and not missing & record.keys()


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
