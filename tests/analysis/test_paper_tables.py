"""The paper's tables are recomputed from the answers, and compared with the paper's numbers, which have a source."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.folders import LARGE, POPE, RUNS, WORLD, World, write_all
from support.pair import TOKENS, Answers
from support.tables import report, row_of

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.paper_numbers import table
from lmms_eval_mai.analysis.report import Report
from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.method.methods import MAI


def f1(answers: Sequence[str], golds: Sequence[str]) -> float:
    pairs = Counter(zip(answers, golds, strict=True))
    precision = pairs["yes", "yes"] / (pairs["yes", "yes"] + pairs["yes", "no"])
    recall = pairs["yes", "yes"] / (pairs["yes", "yes"] + pairs["no", "yes"])  # lmms-eval: no unreadable answers
    return 200 * precision * recall / (precision + recall)


TRACES = {name: WORLD.traces(*run) for name, run in RUNS.items()}
GOLDS = [one.gold for one in WORLD.documents]
SCORES = {name: f1([trace.text for trace in traces], GOLDS) for name, traces in TRACES.items()}


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("table-8", {"small R": 88.4, "large S": 87.1, "large R(S2)": 89.5, "Full RT": 89.2}),
        ("table-10", {"MAI": 89.4, "MAI R(S2)": None}),
        ("table-15", {"MAI": 88.70, "MAI R(S2)": 88.79}),
        (
            "tables-6-7-14",
            {
                **{"small S": 88.6, "small R": 88.4, "small R(S2)": 89.9},
                **{"large S": 87.1, "large R": 88.2, "large R(S2)": 89.5},
            },
        ),
    ],
)
def test_each_table_has_its_methods_with_the_scores_of_their_answers_beside_the_papers(
    found: Report, key: str, printed: dict[str, float | None]
) -> None:
    rows = {row[1]: row_of(found.table(key), "POPE", str(row[1])) for row in found.table(key).rows}
    assert {name: row["score"].paper for name, row in rows.items()} == printed
    expected = {name: SCORES[name] for name in printed}
    assert {name: row["score"].value for name, row in rows.items()} == pytest.approx(expected)


def test_exits_and_tokens_are_beside_the_papers(found: Report) -> None:
    ten = row_of(found.table("table-10"), "POPE", "MAI")
    assert ten["transfer"].value == 100 * [trace.exit for trace in TRACES["MAI"]].count("transfer") / 200
    assert [ten[exit].paper for exit in MAI.exits] == [94.52, 0.51, 4.97]
    beside = {"small S": 88.6, "small R": 88.4, "large S": 87.1, "Full RT": 89.2}
    assert {name: ten[name].paper for name in beside} == beside
    assert {name: ten[name].value for name in beside} == pytest.approx({name: SCORES[name] for name in beside})
    two = row_of(found.table("table-15"), "POPE", "MAI R(S2)")
    assert two["transfer"].paper == 4.78 and "agree_short" not in two
    for name, tokens, printed in (("small S", TOKENS["simple"], 1.0), ("small R(S2)", TOKENS["think"], 266.1)):
        row = row_of(found.table("tables-5-13"), "POPE", name)
        assert (row["tokens"].value, row["tokens"].paper, row["answer_tokens"].value) == (tokens, printed, 1)


@pytest.mark.parametrize(
    ("key", "measure", "model", "printed"),
    [
        ("tables-5-13", "tokens", "OpenGVLab/InternVL3_5-14B-HF", 47.0),
        ("tables-6-7-14", "score", "OpenGVLab/InternVL3_5-14B-HF", 88.3),
        ("tables-6-7-14", "score", LARGE, 89.5),
    ],
)
def test_each_model_has_the_numbers_of_its_own_table_of_the_paper(
    tmp_path: Path, key: str, measure: str, model: str, printed: float
) -> None:
    dataclasses.replace(POPE, large=model).write(tmp_path, "large", "r_s2")
    assert row_of(report([tmp_path], ("paper",)).table(key), "POPE")[measure].paper == printed


@pytest.mark.parametrize(
    ("benchmark", "name", "printed"),
    [
        ("mmmu_val", "MMMU", {"large S": 55.6, "large R": 64.3, "large R(S2)": None}),
        ("realworldqa", "RealWorldQA", {"large S": 67.58, "large R": None, "large R(S2)": 70.33}),
    ],
)
def test_reasoning_has_two_stages_in_table_7_except_on_mmmu(
    tmp_path: Path, benchmark: str, name: str, printed: dict[str, float | None]
) -> None:
    answers = Answers("A", "A", "A", "A", "A", "A", fields=(("mmmu_acc", {"subdomain": "Art"}),))
    for day, suffix in enumerate(("s", "r", "r_s2"), start=1):
        World(benchmark, [answers] * 3).write(tmp_path, "large", suffix, time=f"2026010{day}_000000")
    found = report([tmp_path], ("7",)).table("tables-6-7-14")
    assert {method: row_of(found, name, method)["score"].paper for method in printed} == printed


def test_other_models_have_the_same_tables_without_the_papers_numbers_also_with_its_short_names(tmp_path: Path) -> None:
    world = dataclasses.replace(WORLD, small="/models/2B", large="/models/8B")
    write_all(world, tmp_path, [("mai", "s"), ("full_rt", "s"), ("large", "r")])
    found = report([tmp_path], ("paper",))
    cells = [cell for table in found.tables for row in table.rows for cell in row]
    assert not [cell for cell in cells if getattr(cell, "paper", None) is not None]
    row = row_of(found.table("table-10"), "POPE", "MAI")
    assert row["score"].value == pytest.approx(SCORES["MAI"])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"think": "E"}, "MAI E"),
        ({"anls_threshold": 0.5}, "MAI (anls_threshold=0.5)"),
    ],
)
def test_runs_with_other_options_have_rows_of_their_own_without_the_papers_numbers(
    tmp_path: Path, options: dict[str, Any], name: str
) -> None:
    other = dataclasses.replace(WORLD, options=options)
    WORLD.write(tmp_path, "mai", time="20260101_000000")
    other.write(tmp_path, "mai", time="20260102_000000")
    (WORLD if "anls_threshold" in options else other).write(tmp_path, "full_rt", time="20260103_000000")
    found = report([tmp_path], ("10",))
    assert not [gap for gap in found.gaps if "is not used" in gap]
    assert {"MAI", name} < {row[1] for row in found.table("methods").rows}
    rows = [row_of(found.table("table-10"), "POPE", one) for one in ("MAI", name)]
    assert [row["score"].paper for row in rows] == [89.4, None]
    # Full RT compares no answers.
    assert rows[1]["Full RT"].paper == (89.2 if "anls_threshold" in options else None)


def test_mmbench_counts_a_question_as_right_if_all_its_rotations_are_right(tmp_path: Path) -> None:
    def answers(index: int, large: str) -> Answers:
        row = {"index": index, "category": "x", "prediction": large, "answer": "A"}
        return Answers("A", "A", large, "A", "A", fields=(("gpt_eval_score", row),))

    rows = [answers(1, "A"), answers(1_000_001, "B"), answers(2, "A"), answers(1_000_002, "A"), answers(1_000_003, "A")]
    World("mmbench_en_dev", rows).write(tmp_path, "large")
    cell = row_of(report([tmp_path], ("7",)).table("tables-6-7-14"), "MMBench", "large S")["score"]
    assert (cell.value, cell.n) == (50.0, 2)  # question 3 has no original order


def test_every_table_has_a_source_and_all_its_numbers_once() -> None:
    cells = pd.read_csv(paper_numbers.CELLS, keep_default_na=False)
    benchmarks = list(paper_numbers.load()["benchmarks"])
    assert set(benchmarks) == set(BENCHMARKS) - {"shapes"}
    assert [paper_numbers.documents(name) for name in benchmarks] == [9000, 900, 4329, 2500, 2801, 765]
    assert list(paper_numbers.load()["tables"]) == [str(number) for number in range(1, 16)]
    for one in range(1, 16):
        assert table(one)["source"].startswith(f"Table {one} ("), one
    assert not cells.duplicated(["table", "method", "benchmark", "measure"]).any()
    sizes = {5: 54, 6: 15, 7: 45, 8: 66, 9: 19, 10: 66, 11: 18, 13: 90, 14: 90, 15: 66}
    assert cells.groupby("table").size().to_dict() == sizes  # rows times benchmarks times columns
