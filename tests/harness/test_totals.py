"""What a run has counted, and the table at its end."""

import dataclasses
import itertools
from typing import Any

import pytest

from lmms_eval_mai.contract import Call, CallKey, CallPrompt, Side
from lmms_eval_mai.errors import MissingAnswer, UnreadableImage
from lmms_eval_mai.harness.totals import Totals, final_table
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.method.sparse import Selection
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.outcomes import SHOWN_CAUSES, Failures


def config(method: str = "mai", **arguments: Any) -> Config:
    return parse({"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl", "method": method, **arguments})


def call(side: Side = "large", task: str = "pope_s", doc_id: int = 7, **fields: Any) -> Call:
    """Return a call with 9 prompt tokens and 2 output tokens, of half a second."""
    known = {"prompt": "simple", "started_at": 100.0} | fields
    prompt: CallPrompt = known.pop("prompt")
    key = CallKey(task, doc_id, 0, side, prompt)
    return Call("Yes", "stop", 9, 0, 2, None, None, 0.5, key=key, **known)


def trace(exit: str, *calls: Call, **fields: Any) -> Trace:
    return Trace(exit, calls[-1], calls, **fields)


def totals(*traces: Trace, failures: Failures | None = None, resumed: bool = False) -> Totals:
    return Totals.of(traces, failures or Failures(), resumed)


def rows(table: str) -> list[list[str]]:
    """Return the cells of each row of the table, its headings first, which have several lines."""
    return [line.split() for line in table.split("\n\n")[1].split("\n")]


def test_the_totals_are_the_sums_over_the_calls_of_all_ranks() -> None:
    made: tuple[tuple[Side, CallPrompt], ...] = (("small", "think"), ("large", "transfer"))
    ranks: list[list[Trace]] = [[], [], []]
    for doc_id, task in itertools.product(range(7), ("pope_s", "mmmu_val_s")):
        calls = [call(side, task, doc_id, prompt=prompt, started_at=100.0 + doc_id) for side, prompt in made]
        selection = Selection((2, 0), 8, 0.9, "a b", 3, 4) if doc_id else None
        ranks[doc_id % 3].append(trace("transfer", *calls, readable=doc_id != 1, selection=selection))
    merged = Totals.merged([totals(*rank) for rank in ranks])
    assert (merged.ranks, merged.sum("samples"), merged.sum("unreadable"), merged.wall_s) == (3, 14, 2, 6.5)
    found = rows(final_table(merged, config("full_rt", transfer="sparse", sparse_layer=0.33)))
    assert found[:2] == [["kept"], ["tokens", *["small"] * 3, *["large"] * 3]]
    assert found[2] == ["task", "n", "%", *["calls", "tokens", "s"] * 2]
    assert found[4] == ["pope_s", "7", "25.0", *["7", "14", "3.5"] * 2]


def test_the_table_has_the_share_of_each_exit_if_there_are_several() -> None:
    exits = ["agree_short"] * 6 + ["agree_think", "transfer"]
    table = final_table(totals(*(trace(exit, call(), readable=exit != "transfer") for exit in exits)), config())
    assert rows(table)[0][:2] == ["agree_", "agree_"] and rows(table)[1][:3] == ["short", "think", "transfer"]
    assert rows(table)[3][:5] == ["pope_s", "8", "75.0", "12.5", "12.5"]
    assert "final answer of 1 samples" in table
    table = final_table(totals(trace("large", call())), config("large"))
    assert rows(table)[1:] == [["task", "n", "calls", "tokens", "s"], ["pope_s", "1", "1", "2", "0.5"]]


def test_calls_that_a_token_limit_cut_off_are_counted_for_each_model() -> None:
    cut = dataclasses.replace(call("small"), finish_reason="length")
    found = totals(trace("transfer", cut, call()), trace("transfer", cut, call(task="pope_r")))
    assert "(`finish_reason` is `length`): 2 calls of the small model." in final_table(found, config())
    assert "finish_reason" not in final_table(totals(trace("agree_short", call())), config())


@pytest.mark.parametrize("way", ["shared", "resumed"])
def test_a_run_with_shared_calls_and_a_resumed_one_have_no_wall_time(way: str) -> None:
    whole = totals(trace("large", call()))
    assert whole.wall_s == 0.5 and "Wall time 0.5 s." in final_table(whole, config("large"))
    other = trace("large", call(shared=way == "shared"))
    found = Totals.merged([whole, totals(other, resumed=way == "resumed")])
    table = final_table(found, config("large"))
    assert found.wall_s is None and "Wall time" not in table
    assert rows(table)[-1] == ["pope_s", "2", "2", "4", *["1.0"] * (way == "resumed")]
    assert totals().wall_s is None


def test_the_table_counts_the_failed_samples_of_all_ranks_and_groups_them_by_cause() -> None:
    ranks = [totals(trace("agree_short", call())), totals()]
    for number in range(12):
        ranks[number % 2].failures.add(("pope_s", number, 0), MissingAnswer(f"no answer to document {number}."))
    for number in range(SHOWN_CAUSES):
        ranks[1].failures.add(("pope_r", 12, 1), UnreadableImage("cause " + "x" * number))
    found = Totals.merged(ranks)
    table = final_table(found, config())
    assert [row[:3] for row in rows(table)[-2:]] == [["pope_r", "0", "10"], ["pope_s", "1", "12"]]
    assert "11 more with a similar message: pope_s document 2, " in table and " and 1 more causes" in table
    assert found.failures.by_type == {"MissingAnswer": 12, "UnreadableImage": 10}
