"""What a run shows: its progress line, its final table, and the figures beside its results."""

import asyncio
import dataclasses
import itertools
from typing import Any

import pytest

from lmms_eval_mai.contract import Call, CallKey, CallPrompt, Side
from lmms_eval_mai.errors import MissingAnswer, UnreadableImage
from lmms_eval_mai.method.sparse import Selection
from lmms_eval_mai.method.trace import Trace
from lmms_eval_mai.run import totals as run_totals
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.progress import Progress, progress_bar
from lmms_eval_mai.run.totals import SHOWN_CAUSES, Totals, figures


def config(method: str = "mai", **arguments: Any) -> Config:
    return parse({"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl", "method": method, **arguments})


def call(side: Side = "large", task: str = "pope_s", **fields: Any) -> Call:
    """Return a call with 9 prompt tokens and 2 output tokens."""
    return Call(CallKey(task, 7, 0, side, "simple"), "Yes", "stop", 9, 0, 2, None, None, 0.5, **fields)


def add(totals: Totals, exit: str, *calls: Call, **fields: Any) -> Totals:
    totals.add(Trace(exit, calls[-1], calls, **fields))
    return totals


def table(totals: Totals, given: Config) -> str:
    return run_totals.table(totals, figures(totals, given, {}), given)


def columns(text: str, row: int = 1) -> dict[str, str]:
    """Return the cells of a row of the table by column."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|-")]
    header, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (rows[0], rows[row]))
    return dict(zip(header, cells, strict=True))


def test_figures_are_the_sums_over_the_calls_and_samples_of_all_ranks() -> None:
    ranks = [Totals() for _ in range(3)]
    tasks = ("pope_s", "mmmu_val_s")
    made: tuple[tuple[Side, CallPrompt], ...] = (("small", "think"), ("large", "transfer"))
    for doc_id, task in itertools.product(range(7), tasks):
        calls = [
            Call(CallKey(task, doc_id, 0, side, prompt), "Yes", "stop", 9 + doc_id, doc_id, 2, None, None, 0.5,
                 answer_tokens=1 if side == "small" else None, shared=doc_id == 3 and side == "small",
                 target_calls=doc_id if side == "large" else None)
            for side, prompt in made
        ]  # fmt: skip
        selection = Selection((2, 0), 8, 0.9, "a b", 3, 4) if doc_id else None
        add(ranks[doc_id % 3], "transfer", *calls, readable=doc_id != 1, selection=selection)
    for rank, (pope, mmmu) in zip(ranks, ((3.0, 1.0), (1.0, 2.5), (0.0, 0.0)), strict=True):
        rank.add_seconds("pope_s", pope)
        rank.add_seconds("mmmu_val_s", mmmu)
    totals = Totals.merged(ranks)
    found = figures(totals, config("full_rt", transfer="sparse", sparse_layer=0.33), {"small": "at http://a:b@h"})
    assert (found["ranks"], found["samples"], found["options"]["sparse_layer"]) == (3, 14, 0.33)
    # The slowest rank decides each wall time.
    assert found["wall_s"] == 4.0
    assert {name: task["wall_s"] for name, task in found["tasks"].items()} == {"pope_s": 3.0, "mmmu_val_s": 2.5}
    assert found["engines"]["small"]["settings"] == "at http://<redacted>@h"
    sums = {"calls": 7, "prompt_tokens": 63 + 21, "cached_tokens": 21, "output_tokens": 14, "call_seconds": 3.5}
    small, large = {**sums, "answer_tokens": 7, "shared_calls": 1}, {**sums, "answer_tokens": None, "target_calls": 21}
    for name in tasks:
        task = found["tasks"][name]
        assert (task["samples"], task["unreadable"], task["exits"]) == (7, 1, {"transfer": 7})
        assert (task["scored_tokens"], task["kept_tokens"]) == (48, 12)
        assert (task["small"], task["large"]) == (small, large)
    full = figures(totals, config("full_rt"), {})
    assert (full["method"], full["options"]) == ("full_rt", {}) and "kept_tokens" not in str(full["tasks"])


def test_table_shows_the_share_of_each_exit_and_a_method_with_a_single_exit_has_no_exit_column() -> None:
    totals = Totals()
    for exit, readable in zip(["agree_short"] * 6 + ["agree_think", "transfer"], [True] * 7 + [False], strict=True):
        add(totals, exit, call(), readable=readable)
    row = columns(table(totals, config()))
    assert (row["agree_short"], row["transfer"], row["Unreadable"]) == ("6 (75.00%)", "1 (12.50%)", "1")
    row = columns(table(add(Totals(), "large", call()), config("large")))
    assert list(row) == ["Task", "Samples", "large calls", "large output tokens", "large call seconds"]


def test_calls_that_a_token_limit_cut_off_are_counted_for_each_model() -> None:
    totals = add(Totals(), "agree_short", call(side="small"), call())
    assert "limit" not in table(totals, config())
    cut = dataclasses.replace(call("small"), finish_reason="length")
    totals = Totals.merged([add(totals, "transfer", cut, call()), add(Totals(), "transfer", cut, call(task="pope_r"))])
    assert "Cut off at a token limit (`finish_reason` is `length`): 2 calls of the small model." in table(
        totals, config()
    )
    tasks = figures(totals, config(), {})["tasks"]
    assert [tasks[name]["small"]["cut_calls"] for name in ("pope_s", "pope_r")] == [1, 1]
    assert "cut_calls" not in tasks["pope_s"]["large"]


def test_table_with_shared_calls_counts_them_and_shows_no_times() -> None:
    totals = add(Totals(), "large", call())
    assert "Wall time" in table(totals, config("large")) and "shared" not in table(totals, config("large"))
    text = table(add(totals, "large", call(shared=True)), config("large"))
    assert (columns(text)["large calls"], columns(text)["large shared calls"]) == ("2", "1")
    assert "large call seconds" not in columns(text) and "Wall time" not in text


def test_figures_that_an_engine_may_not_report_are_shown_only_if_it_reports_them_for_every_call() -> None:
    totals = Totals()
    for reports in (True, False):
        known = {"answer_tokens": 1, "proposed_tokens": 131, "accepted_tokens": 108, "target_calls": 39}
        large = call(**(known if reports else {}))
        row = columns(table(add(totals, "agree_short", call(side="small", answer_tokens=1), large), config()))
        assert "small answer tokens" in row and ("large answer tokens" in row) is reports
        of_run = figures(totals, config(), {})["tasks"]["pope_s"]
        assert "target_calls" not in of_run["small"]
        assert (known.items() <= of_run["large"].items()) is ("target_calls" in of_run["large"]) is reports


def test_a_resumed_run_has_no_wall_time_in_its_figures() -> None:
    totals = add(Totals(wall_s=2.0, resumed=True), "large", call())
    for of in (totals, Totals.merged([totals, Totals(wall_s=3.0)])):
        found = figures(of, config("large"), {})
        assert found["wall_s"] is found["tasks"]["pope_s"]["wall_s"] is None
        assert found["tasks"]["pope_s"]["large"]["call_seconds"] == 0.5


def test_table_and_figures_count_the_failed_samples_of_all_ranks_and_group_them_by_cause() -> None:
    ranks = [add(Totals(), "agree_short", call()), Totals()]
    for number in range(12):
        ranks[number % 2].failures.add(("pope_s", number, 0), MissingAnswer(f"no answer to document {number}."))
    for number in range(SHOWN_CAUSES):
        ranks[1].failures.add(("pope_s", 12, 1), UnreadableImage("cause " + "x" * number))
    totals = Totals.merged(ranks)
    text = table(totals, config())
    assert columns(text)["Not answered"] == str(12 + SHOWN_CAUSES)
    assert "11 more with a similar message: pope_s document 2, " in text and " and 1 more causes" in text
    found = figures(totals, config(), {})
    assert (found["not_answered"], found["errors"]) == (22, {"MissingAnswer": 12, "UnreadableImage": 10})


def test_progress_begins_with_the_finished_samples_and_is_short_in_a_log_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = [("pope_s", number, 0) for number in range(5000)]
    with progress_bar(5000, shown=True, done=2) as bar:
        progress = Progress(keys, Totals(), None, 0, bar, done=set(keys[:2]))

        async def report_all() -> None:
            for index in range(5000):
                await progress.report(index, Trace("agree_short", call(), (call(),)))

        asyncio.run(report_all())
    first, last = capsys.readouterr().err.strip().split("\r")  # two texts, and not one per sample
    assert first.startswith("mai_cascade: 2/5000, ") and last == "mai_cascade: 5000/5000, 00:00 left, agree_short=5000"
