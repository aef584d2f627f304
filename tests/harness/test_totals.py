"""What a run has counted, and the table at its end."""

import dataclasses
import itertools
import re
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


def columns(table: str, row: int = 0) -> dict[str, str]:
    """Return the cells of a row of the table by heading. All but the first are aligned to the right."""
    lines = table.split("\n\n")[1].split("\n")
    last = next(number for number, line in enumerate(lines) if line.lstrip().startswith("task"))
    ends = [match.end() for match in re.finditer(r"\S+( %)?", lines[last])]
    places = list(itertools.pairwise([len(lines[last + 1].split()[0]), *ends[1:]]))
    headings = (
        "".join(line[a:b].strip() + " " * (not line[a:b].rstrip().endswith("_")) for line in lines[: last + 1]).strip()
        for a, b in places
    )
    cells = (lines[last + 1 + row][a:b].strip() for a, b in places)
    return {"task": lines[last + 1 + row].split()[0], **dict(zip(headings, cells, strict=True))}


def test_the_totals_are_the_sums_over_the_calls_of_all_ranks() -> None:
    made: tuple[tuple[Side, CallPrompt], ...] = (("small", "think"), ("large", "transfer"))
    ranks: list[list[Trace]] = [[], [], []]
    for doc_id, task in itertools.product(range(7), ("pope_s", "mmmu_val_s")):
        calls = [call(side, task, doc_id, prompt=prompt, started_at=100.0 + doc_id) for side, prompt in made]
        selection = Selection((2, 0), 8, 0.9, "a b", 3, 4) if doc_id else None
        ranks[doc_id % 3].append(trace("transfer", *calls, readable=doc_id != 1, selection=selection))
    merged = Totals.merged([totals(*rank) for rank in ranks])
    assert (merged.ranks, merged.sum("samples"), merged.sum("unreadable"), merged.wall_s) == (3, 14, 2, 6.5)
    row = columns(final_table(merged, config("full_rt", transfer="sparse", sparse_layer=0.33)), 1)
    assert row == {
        "task": "pope_s", "n": "7", "kept tokens %": "25.0",
        "small calls": "7", "small tokens": "14", "small s": "3.5",
        "large calls": "7", "large tokens": "14", "large s": "3.5",
    }  # fmt: skip


def test_the_table_has_the_share_of_each_exit_and_fits_100_columns() -> None:
    exits = ["agree_short"] * 6 + ["agree_think", "transfer"]
    table = final_table(totals(*(trace(exit, call(), readable=exit != "transfer") for exit in exits)), config())
    row = columns(table)
    assert (row["agree_short %"], row["agree_think %"], row["transfer %"]) == ("75.0", "12.5", "12.5")
    assert "final answer of 1 samples" in table
    assert max(map(len, table.split("\n\n")[1].split("\n"))) <= 82  # with a task of a long name 100
    row = columns(final_table(totals(trace("large", call())), config("large")))
    assert list(row) == ["task", "n", "large calls", "large tokens", "large s"]


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
    assert columns(table)["large calls"] == "2" and ("large s" in columns(table)) is (way == "resumed")
    assert totals().wall_s is None


def test_the_table_counts_the_failed_samples_of_all_ranks_and_groups_them_by_cause() -> None:
    ranks = [totals(trace("agree_short", call())), totals()]
    for number in range(12):
        ranks[number % 2].failures.add(("pope_s", number, 0), MissingAnswer(f"no answer to document {number}."))
    for number in range(SHOWN_CAUSES):
        ranks[1].failures.add(("pope_r", 12, 1), UnreadableImage("cause " + "x" * number))
    found = Totals.merged(ranks)
    table = final_table(found, config())
    assert [(columns(table, row)["n"], columns(table, row)["failed"]) for row in (0, 1)] == [("0", "10"), ("1", "12")]
    assert "11 more with a similar message: pope_s document 2, " in table and " and 1 more causes" in table
    assert found.failures.by_type == {"MissingAnswer": 12, "UnreadableImage": 10}
