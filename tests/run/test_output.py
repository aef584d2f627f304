"""What a run shows: its progress line, its final table, and the figures beside its results."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lmms_eval_mai.contract import Call, CallKey, Side
from lmms_eval_mai.errors import MissingAnswer, UnreadableImage
from lmms_eval_mai.paper.sample import Exit, Trace
from lmms_eval_mai.paper.sparse import Selection
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.failures import SHOWN_CAUSES
from lmms_eval_mai.run.figures import figures
from lmms_eval_mai.run.final_table import table
from lmms_eval_mai.run.metering import RunTotals
from lmms_eval_mai.run.progress import Progress, progress_bar


def config(mode: str) -> Config:
    return parse({"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl", "mode": mode})


def totals(exits: dict[Exit, int]) -> RunTotals:
    found = RunTotals()
    for exit, count in exits.items():
        for doc_id in range(count):
            one = call(doc_id=doc_id, side="small" if exit == "small" else "large")
            found.add(Trace(exit, one, (one,), ()))
    return found


def call(task: str = "pope_s", doc_id: int = 7, side: Side = "large", **fields: Any) -> Call:
    """Return a call with 9 prompt tokens and 2 output tokens."""
    return Call(CallKey(task, doc_id, 0, side, "short"), "Yes", "stop", 9, 0, 2, None, None, 0.5, **fields)


def cells(text: str, number: int) -> list[str]:
    """Return the cells of a table row; 0 is the header."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|-")]
    return [cell.strip() for cell in rows[number].strip("|").split("|")]


def columns_of(text: str) -> dict[str, str]:
    return dict(zip(cells(text, 0), cells(text, 1), strict=True))


def test_table_shows_the_share_of_each_exit_and_a_mode_with_a_single_exit_has_no_exit_column() -> None:
    text = table(totals({"agree_short": 6, "agree_think": 1, "transfer": 1}), config("cascade"))
    assert cells(text, 0)[:5] == ["Task", "Samples", "agree_short", "agree_think", "transfer"]
    assert cells(text, 1)[:5] == ["pope_s", "8", "6 (75.00%)", "1 (12.50%)", "1 (12.50%)"]
    text = table(totals({"large": 20}), config("large"))
    assert "%" not in text and cells(text, 0)[2] == "large calls" and cells(text, 1)[1] == "20"


def test_table_of_sparse_transfer_shows_the_kept_tokens_and_names_empty_selections() -> None:
    run = replace(config("transfer"), transfer="sparse")
    found = totals({"transfer": 2})
    for kept in ((2, 0, 1), ()):
        one = call()
        found.add(Trace("transfer", one, (one,), (), selection=Selection(kept, 8, 0.9, "a b c", 3, 4)))
    text = table(found, run)
    columns = columns_of(text)
    assert columns["kept tokens"] == "3 of 16 (18.75%)" and columns["Samples"] == "4"
    assert "mode=transfer, transfer=sparse: " in text and "In 1 samples no token of the thinking was" in text
    assert "kept tokens" not in table(found, config("transfer"))


def test_table_with_shared_calls_counts_them_and_shows_no_times() -> None:
    found = totals({"large": 2})
    assert "Wall time" in table(found, config("large")) and "shared" not in table(found, config("large"))
    shared = call(shared=True)
    found.add(Trace("large", shared, (shared,), ()))
    text = table(found, config("large"))
    columns = columns_of(text)
    assert (columns["large calls"], columns["large shared calls"], columns["large output tokens"]) == ("3", "1", "6")
    assert "1 of 3 calls are shared" in text and "large call seconds" not in columns and "Wall time" not in text


def test_table_shows_answer_tokens_and_accepted_drafts_only_of_an_engine_that_reports_them_for_every_call() -> None:
    found = RunTotals()
    for number, accepted in enumerate((108, None)):
        reported = {"answer_tokens": 1, "proposed_tokens": 131, "accepted_tokens": accepted, "target_calls": 39}
        small, large = call(side="small", answer_tokens=1), call(**(reported if accepted else {}))
        found.add(Trace("agree_short", large, (small, large), ()))
        columns = columns_of(table(found, config("cascade")))
        assert columns["small answer tokens"] == str(number + 1)
        assert not {"small drafted tokens accepted", "small target calls"} & set(columns)
        known = {"large answer tokens", "large drafted tokens accepted", "large target calls"} & set(columns)
        assert len(known) == (3 if accepted else 0)
        if accepted:
            assert columns["large drafted tokens accepted"] == "108 of 131 (82.44%)"
            assert columns["large target calls"] == "39"
    large = replace(large, proposed_tokens=20, accepted_tokens=5)  # vLLM does not report the target calls
    found = RunTotals()
    found.add(Trace("large", large, (large,), ()))
    header = cells(table(found, config("large")), 0)
    assert "large drafted tokens accepted" in header and "large target calls" not in header


def test_table_and_figures_count_the_failed_samples_of_all_ranks_and_group_them_by_cause() -> None:
    ranks = [totals({"agree_short": 1}), *(RunTotals() for _ in range(2))]
    for number in range(12):
        ranks[number % 3].add_error(("pope_s", number, 0), MissingAnswer(f"no answer to document {number}."))
    ranks[2].add_error(("pope_s", 12, 1), UnreadableImage("pope_s document 12: its image cannot be read."))
    found = RunTotals.of_ranks(ranks)
    text = table(found, config("cascade"))
    assert cells(text, 1)[:3] == ["pope_s", "1", "13"]
    assert "13 samples have no answer and are left out of all scores: 12 MissingAnswer, 1 UnreadableImage." in text
    first, second = text.strip().splitlines()[-2:]
    assert first.startswith(
        "  MissingAnswer: no answer to document 0. 11 more with a similar message: pope_s document "
    )
    assert first.endswith(" and 1 more, named in the log above.")
    assert second == "  UnreadableImage: pope_s document 12: its image cannot be read."
    counts = figures(found, config("cascade"), {})
    assert (counts["not_answered"], counts["errors"]) == (13, {"MissingAnswer": 12, "UnreadableImage": 1})

    causes = [MissingAnswer("cause " + "x" * number) for number in range(SHOWN_CAUSES + 2)]
    found = totals({"agree_short": 1})
    assert all(found.add_error(("pope_s", 0, 0), cause) is None for cause in causes)
    text = table(found, config("cascade"))
    assert text.count("  MissingAnswer: cause") == SHOWN_CAUSES and "... and 2 more, named in the log above" in text


def test_table_counts_the_answers_that_no_scorer_can_read() -> None:
    found = totals({"agree_short": 3})
    assert "nreadable" not in table(found, config("cascade"))
    for doc_id, task in enumerate(["mmmu_val_s", "mmmu_val_s", "pope_s"]):
        one = call(task, doc_id)
        found.add(Trace("transfer", one, (one,), (), readable=False))
    text = table(found, config("cascade"))
    assert [cells(text, row)[:3] for row in range(3)] == [
        ["Task", "Samples", "Unreadable"],
        ["mmmu_val_s", "2", "2"],
        ["pope_s", "4", "1"],
    ]
    assert "cannot read the final answer of 3 samples" in text
    assert "MMMU scorer guesses" in text


def test_a_failed_sample_with_a_message_like_an_earlier_one_is_logged_with_the_name_of_that_sample(
    warnings: list[str],
) -> None:
    keys = [("pope_s", 0, 0), ("pope_s", 1, 1)]
    progress = Progress(keys, RunTotals(), None, 2, progress_bar(2, shown=False))
    for index in range(2):
        assert asyncio.run(progress.report(index, MissingAnswer(f"no answer to document {index}.")))
    assert warnings == [
        "mai_cascade: sample failed and is not scored: MissingAnswer: no answer to document 0.",
        "mai_cascade: pope_s document 1, repeat 1 failed and is not scored: MissingAnswer, with a message like that of "
        "pope_s document 0.",
    ]


def test_progress_begins_with_the_finished_samples_and_is_short_in_a_log_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = [("pope_s", number, 0) for number in range(3)]
    answer = call()
    with progress_bar(3, shown=True, done=2) as bar:
        progress = Progress(keys, RunTotals(), None, 0, bar, done=set(keys[:2]))
        for index in range(3):
            asyncio.run(progress.report(index, Trace("agree_short", answer, (answer,), ())))
    first, *_, last = capsys.readouterr().err.strip().split("\r")
    assert first.startswith("mai_cascade: 2/3, ") and last == "mai_cascade: 3/3, 00:00 left, agree_short=3"
    with progress_bar(5000, shown=True) as bar:  # in a log file, two texts and not one per sample
        bar.totals = RunTotals()
        bar.totals.task("pope_s").exits.update({"agree_short": 4000, "agree_think": 600, "transfer": 400})
        for _ in range(5000):
            bar.update()
    shown = capsys.readouterr().err.strip().split("\r")
    assert len(shown) == 2
    assert shown[-1] == "mai_cascade: 5000/5000, 00:00 left, agree_short=4000, agree_think=600, transfer=400"


# --- figures ------------------------------------------------------------------------------------------------


def trace_of(doc_id: int) -> Trace:
    """Return a trace of two calls whose figures depend on the document."""
    small, large = (
        Call(CallKey("pope_s", doc_id, 0, side, stage), "Yes", "stop", 9 + doc_id, doc_id, 2, None, None, 0.5,
             answer_tokens=1 if side == "small" else None, shared=doc_id == 3 and side == "small",
             target_calls=doc_id if side == "large" else None)
        for side, stage in (("small", "think"), ("large", "transfer"))
    )  # fmt: skip
    selection = Selection((2, 0), 8, 0.9, "a b", 3, 4) if doc_id else Selection((), 8, 0.0, "", 3, 0)
    return Trace("transfer", large, (small, large), (), readable=doc_id != 1, selection=selection)


def test_figures_are_the_sums_over_the_calls_of_all_ranks() -> None:
    ranks = [RunTotals() for _ in range(3)]
    for doc_id in range(7):
        ranks[doc_id % 3].add(trace_of(doc_id))
    run = replace(config("transfer"), transfer="sparse", sparse_layer=0.33)
    found = figures(RunTotals.of_ranks(ranks), run, {})
    task = found["tasks"]["pope_s"]
    assert (found["ranks"], found["transfer"], found["sparse_layer"]) == (3, "sparse", 0.33)
    assert (task["samples"], task["unreadable"], task["exits"]) == (7, 1, {"transfer": 7})
    assert task["selections"] == {
        "transfers": 7,
        "scored_tokens": 56,
        "kept_tokens": 12,
        "transferred_tokens": 24,
        "empty": 1,
    }
    sums = {"calls": 7, "prompt_tokens": 63 + 21, "cached_tokens": 21, "output_tokens": 14, "call_seconds": 3.5}
    small, large = {**sums, "answer_tokens": 7, "shared_calls": 1}, {**sums, "answer_tokens": None, "target_calls": 21}
    assert task["small"] == {**small, "stages": {"think": small}}
    assert task["large"] == {**large, "stages": {"transfer": large}}
    full = figures(RunTotals.of_ranks(ranks), config("transfer"), {})
    assert "transfer" not in full and "selections" not in full["tasks"]["pope_s"]


def test_slowest_rank_decides_the_wall_time_of_the_run_and_of_each_task() -> None:
    ranks = []
    for walls, earlier in (({"pope_s": 3.0, "mmmu_val_r": 1.0}, 0.5), ({"pope_s": 1.0, "mmmu_val_r": 2.5}, 2.0)):
        one = RunTotals(wall_s=sum(walls.values()), earlier_s=earlier)
        for task, wall_s in walls.items():
            one.task(task).wall_s = wall_s
        ranks.append(one)
    text = table(RunTotals.of_ranks(ranks), config("cascade"))
    assert "Wall time 4.0 s, 2.0 s of it before this start: mmmu_val_r 2.5 s, pope_s 3.0 s." in text
    assert ", 2 ranks\n" in text


def test_password_in_an_address_is_not_in_the_figures_and_not_in_the_table() -> None:
    run = parse({"small": "http://me:secret@host:8000/v1", "large": "http://host:8001/v1"})
    for text in (str(figures(RunTotals(), run, {})), table(RunTotals(), run)):
        assert "http://<redacted>@host:8000/v1" in text and "secret" not in text
