"""The paper's tables are recomputed from the answers, and compared with the paper's numbers."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.folders import LARGE, POPE, TOKENS, Answers, World, write_run
from support.tables import paper, row_of, value
from support.worlds import WORLD, final, write_all

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.report import Report


def f1(answers: Sequence[str], golds: Sequence[str]) -> float:
    pairs = Counter(zip(answers, golds, strict=True))
    precision = pairs["yes", "yes"] / (pairs["yes", "yes"] + pairs["yes", "no"])
    recall = pairs["yes", "yes"] / (pairs["yes", "yes"] + pairs["no", "yes"])  # lmms-eval: no unreadable answers
    return 200 * precision * recall / (precision + recall)


GOLDS = [one.gold for one in WORLD.documents]
SCORES = {
    "MAI": f1([final(one) for one in WORLD.documents], GOLDS),
    "Full RT": f1([one.transferred for one in WORLD.documents], GOLDS),
    "small S": f1([one.small for one in WORLD.documents], GOLDS),
    "small R": f1([one.thought for one in WORLD.documents], GOLDS),
    "large S": f1([one.large for one in WORLD.documents], GOLDS),
    "large R": f1([one.large_thought for one in WORLD.documents], GOLDS),
}


@pytest.mark.parametrize(
    ("key", "name", "printed"),
    [
        (
            "table-10",
            "MAI 8B + 2B-R",
            {"MAI": 89.4, "small S": 88.6, "small R": 88.4, "large S": 87.1, "Full RT": 89.2},
        ),
        ("table-10", "MAI 8B + 2B-R(S2)", {"MAI": None, "small R": None, "Full RT": 89.2}),
        ("table-8", "Full RT 8B + 2B-R", {"small R": 88.4, "large S": 87.1, "large R": 89.5, "Full RT": 89.2}),
        ("tables-6-7-14", "2B", {"S": 88.6, "R": 88.4, "R(S2)": 89.9}),
        ("tables-6-7-14", "8B", {"S": 87.1, "R": 88.2, "R(S2)": 89.5}),
    ],
)
def test_scores_are_those_of_the_answers_and_beside_the_papers(
    found: Report, key: str, name: str, printed: dict[str, float | None]
) -> None:
    row = row_of(found.table(key), "POPE", name)
    side = {"2B": "small ", "8B": "large "}.get(name, "")
    expected = {column: SCORES[side + column.removesuffix("(S2)")] for column in printed}
    assert {column: value(row[column]) for column in printed} == pytest.approx(expected)
    assert {column: paper(row[column]) for column in printed} == printed
    assert "E" not in row and "E(S2)" not in row


@pytest.mark.parametrize(
    ("key", "column", "model", "printed"),
    [
        ("tables-5-13", "R", "OpenGVLab/InternVL3_5-14B-HF", 47.0),
        ("tables-6-7-14", "R(S2)", "OpenGVLab/InternVL3_5-14B-HF", 88.3),
        ("tables-6-7-14", "R(S2)", LARGE, 89.5),
    ],
)
def test_each_model_has_the_numbers_of_its_own_table_of_the_paper(
    tmp_path: Path, key: str, column: str, model: str, printed: float
) -> None:
    dataclasses.replace(POPE, large=model).write(tmp_path, "large", "r_s2")
    assert paper(row_of(report([tmp_path], ("paper",)).table(key), "POPE")[column]) == printed


def test_table_8_has_the_paired_and_the_relative_difference_of_full_rt(found: Report) -> None:
    row = row_of(found.table("table-8"), "POPE", "Full RT 8B + 2B-R")
    gain = row["gain"]
    assert gain.value == pytest.approx(SCORES["Full RT"] - SCORES["large S"])
    assert gain.low < gain.value < gain.high
    assert value(row["relative, %"]) == pytest.approx(100 * (SCORES["Full RT"] / SCORES["large S"] - 1))
    assert paper(row["relative, %"]) == 2.4


def test_table_15_has_both_cascades_and_their_paired_difference(found: Report) -> None:
    row = row_of(found.table("table-15"), "POPE", "MAI 8B + 2B-R")
    printed = {"R: agree_think, %": 0.51, "R(S2): transfer, %": 4.78, "R: MAI": 88.70, "R(S2): MAI": 88.79}
    assert {column: paper(row[column]) for column in printed} == printed
    assert value(row["R(S2): MAI"]) == pytest.approx(SCORES["MAI"])
    assert (value(row["difference, points"]), paper(row["difference, points"]), row["p"]) == (0.0, 0.09, 1.0)


def test_table_5_has_generated_tokens_and_answer_tokens_with_the_papers(found: Report) -> None:
    row = row_of(found.table("tables-5-13"), "POPE", "2B")
    expected = {"S": (TOKENS["simple"], 1.0), "R": (TOKENS["think"], 266.1), "S, answer only": (1, 1.0)}
    assert {column: (value(row[column]), paper(row[column])) for column in expected} == expected
    assert paper(row["R, answer only"]) is None and "E" not in row


def test_table_5_takes_short_answers_from_a_cascade_and_thinking_from_full_rt(tmp_path: Path) -> None:
    WORLD.write(tmp_path, "mai", time="20260101_000000")
    WORLD.write(tmp_path, "full_rt", time="20260102_000000")
    found = report([tmp_path])
    small, large = (row_of(found.table("tables-5-13"), "POPE", name) for name in ("2B", "8B"))
    assert (value(small["S"]), value(small["R"]), value(large["S"]), large["R"]) == (4.0, 100.0, 4.0, None)
    six = row_of(found.table("tables-6-7-14"), "POPE", "8B")
    assert value(six["S"]) == pytest.approx(SCORES["large S"])


@pytest.mark.parametrize(
    ("benchmark", "name", "printed"),
    [
        ("mmmu_val", "MMMU", {"S": 55.6, "R": 64.3, "R(S2)": None}),
        ("realworldqa", "RealWorldQA", {"S": 67.58, "R": None, "R(S2)": 70.33}),
    ],
)
def test_reasoning_has_two_stages_in_table_7_except_on_mmmu(
    tmp_path: Path, benchmark: str, name: str, printed: dict[str, float | None]
) -> None:
    answers = Answers("A", "A", "A", "A", "A", "A", fields=(("mmmu_acc", {"subdomain": "Art"}),))
    for day, suffix in enumerate(("s", "r", "r_s2"), start=1):
        World(benchmark, [answers] * 3).write(tmp_path, "large", suffix, time=f"2026010{day}_000000")
    row = row_of(report([tmp_path]).table("tables-6-7-14"), name, "8B")
    assert {column: paper(row[column]) for column in printed} == printed


def test_other_models_have_the_same_tables_without_the_papers_numbers_also_with_its_short_names(tmp_path: Path) -> None:
    world = dataclasses.replace(WORLD, small="/models/2B", large="/models/8B")
    write_all(world, tmp_path)
    found = report([tmp_path])
    assert {table.key for table in found.tables} >= {"tables-5-13", "tables-6-7-14", "table-8", "table-10", "table-15"}
    cells = [cell for table in found.tables for row in table.rows for cell in row]
    assert not [cell for cell in cells if getattr(cell, "paper", None) is not None]
    row = row_of(found.table("table-10"), "POPE", "MAI 8B + 2B-R")
    assert value(row["MAI"]) == pytest.approx(SCORES["MAI"])


@pytest.mark.parametrize(
    ("options", "name", "has_full_rt"),
    [
        ({"temperature": 0.7}, "MAI 8B + 2B-R (temperature=0.7)", (False, True)),
        ({"think": "E"}, "MAI 8B + 2B-E", (False, True)),
        ({"transfer_answer": "cut"}, "MAI 8B + 2B-R (transfer_answer=cut)", (False, True)),
        ({"anls_threshold": 0.5}, "MAI 8B + 2B-R (anls_threshold=0.5)", (True, True)),  # Full RT compares no answers
    ],
)
def test_runs_with_other_options_have_rows_of_their_own_without_the_papers_numbers(
    tmp_path: Path, options: dict[str, Any], name: str, has_full_rt: tuple[bool, bool]
) -> None:
    other = dataclasses.replace(WORLD, options=options)
    WORLD.write(tmp_path, "mai", time="20260101_000000")
    other.write(tmp_path, "mai", time="20260102_000000")
    (WORLD if "anls_threshold" in options else other).write(tmp_path, "full_rt", time="20260103_000000")
    found = report([tmp_path])
    assert not [gap for gap in found.gaps if "is not used" in gap]
    assert {"MAI 8B + 2B-R", name} < {row[1] for row in found.table("methods").rows}
    rows = [row_of(found.table("table-10"), "POPE", one) for one in ("MAI 8B + 2B-R", name)]
    assert [paper(row["MAI"]) for row in rows] == [89.4, None]
    assert tuple(row["Full RT"] is not None for row in rows) == has_full_rt


def test_mmbench_counts_a_question_as_right_if_all_its_rotations_are_right(tmp_path: Path) -> None:
    def answers(index: int, large: str) -> Answers:
        row = {"index": index, "category": "x", "prediction": large, "answer": "A"}
        return Answers("A", "A", large, "A", "A", fields=(("gpt_eval_score", row),))

    rows = [answers(1, "A"), answers(1_000_001, "B"), answers(2, "A"), answers(1_000_002, "A"), answers(1_000_003, "A")]
    World("mmbench_en_dev", rows).write(tmp_path, "large")
    cell = row_of(report([tmp_path]).table("tables-6-7-14"), "MMBench", "8B")["S"]
    assert (cell.value, cell.n) == (50.0, 2)  # question 3 has no original order


# --- another lmms-eval task, which has its own prompt instead of S, E and R ---

TASK = "any_task"


def write_other(folder: Path, method: str, day: int) -> None:
    """Write a run of the task with the answers of `POPE`."""
    lines = [POPE.line(doc_id, one, method, "") for doc_id, one in enumerate(POPE.documents)]
    write_run(folder, TASK, lines, time=f"2026010{day}_000000", method=method, models=POPE.models)


def test_another_task_has_tokens_and_scores_of_its_own_prompt_and_none_of_small_r(tmp_path: Path) -> None:
    for day, method in enumerate(("small", "large", "full_rt", "mai"), start=1):
        write_other(tmp_path, method, day)
    found = report([tmp_path])
    for model in ("2B", "8B"):
        row = row_of(found.table("tables-5-13"), TASK, model)
        assert (value(row["own prompt"]), value(row["own prompt, answer only"]), row["n"]) == (4.0, 1.0, 4)
        assert not {"S", "E"} & row.keys()
    row = row_of(found.table("table-10"), TASK)
    assert "small R" not in row
    assert (value(row["small S"]), value(row["large S"])) == (50.0, 75.0)
