"""Scores, differences and their p from a table of samples. Documents that share an image are resampled together."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.folders import World, pope_world
from support.pair import Answers
from support.tables import report, row_of

from lmms_eval_mai.analysis.intervals import mcnemar
from lmms_eval_mai.analysis.runs.metrics import Comparison, compare, plain, score
from lmms_eval_mai.analysis.runs.runs import Runs


def samples(scores: Any, predicted: Any = None, gold: Any = None) -> pd.DataFrame:
    table = {"score": scores, "predicted": predicted, "gold": gold, "group": math.nan, "is_main": True}
    return pd.DataFrame(table).astype({"score": float})


def yes_no(predicted: list[str], gold: list[str]) -> pd.DataFrame:
    return samples([float(a == b) for a, b in zip(predicted, gold, strict=True)], predicted, gold)


def compared(*given: Any) -> Comparison:
    found = compare(*given)
    assert found is not None
    return found


def test_f1_is_lmms_evals_f1_also_if_some_answers_are_neither_yes_nor_no(task_manager: Any) -> None:
    from lmms_eval.tasks.pope.utils import pope_aggregate_f1_score

    random = np.random.default_rng(5)
    golds = random.choice(["yes", "no"], size=400)
    answers = np.where(random.random(400) < 0.7, golds, random.choice(["yes", "no", "other"], size=400))
    found = score(yes_no(list(answers), list(golds)), "pope", None)
    records = [{"prediction": a, "ground_truth": g} for a, g in zip(answers, golds, strict=True)]
    assert found is not None and found.value == pytest.approx(100 * pope_aggregate_f1_score(records))
    found = score(yes_no(["yes"], ["yes"]), "pope", None)  # one document has no interval
    assert found is not None and (found.value, found.low, found.high) == (100, None, None)


@pytest.mark.parametrize("benchmark", ["realworldqa", "pope"])
@pytest.mark.parametrize("clusters", [None, pd.Series([0, 0, 1, 2])])
def test_methods_that_never_differ_have_an_interval(benchmark: str, clusters: pd.Series | None) -> None:
    table = yes_no(["yes", "no", "yes", "yes"], ["yes", "yes", "yes", "yes"])
    found = compared(table, table, benchmark, clusters)
    assert (found.difference.value, found.p, found.only_first, found.only_second) == (0, 1, 0, 0)
    low, high = found.difference.ends
    assert low < -30 and high > 30


def test_clusters_without_any_difference_between_them_count_as_one_document_each() -> None:
    found = score(plain(pd.Series([True] * 8)), "", pd.Series([0, 0, 0, 0, 1, 1, 2, 3]))
    assert found is not None and (found.value, found.n) == (100, 8)
    assert found.low == pytest.approx(51.01, abs=0.01)  # Wilson's for 4 of 4; 67.6 for 8 of 8


def test_differences_of_scores_between_0_and_1_have_a_bootstrap_interval_and_a_p() -> None:
    found = compared(samples([0.5, 0, 1]), samples([0.5, 0.2, 1]), "infovqa_val", None)
    assert (found.only_first, found.only_second, found.p) == (None, None, 1.0)
    assert found.difference.ends == pytest.approx((-20, 0))
    low, high = compared(samples([0.5, 0.2]), samples([0.5, 0.2]), "infovqa_val", None).difference.ends
    assert low < 0 < high  # although no resample has a difference


def test_p_of_yes_no_questions_is_that_of_f1() -> None:
    golds = ["yes"] * 200 + ["no"] * 100
    # The second method says yes to 100 documents more of each gold: as many answers are right, and F1 is higher.
    first, second = ["yes"] * 100 + ["no"] * 200, ["yes"] * 300
    found = compared(yes_no(second, golds), yes_no(first, golds), "pope", None)
    assert (found.only_first, found.only_second) == (100, 100) and mcnemar(100, 100) == 1
    assert found.difference.value == pytest.approx(80 - 200 / 3) and found.difference.ends[0] > 0
    assert found.p < 0.01


def test_copies_of_documents_with_a_common_image_have_the_intervals_and_p_of_the_documents(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """And without images they have not. A report says once what was resampled."""
    reports = []
    for copies, images in ((1, False), (4, True), (4, False)):
        documents = [
            dataclasses.replace(one, images=(f"image {number}",) if images else ())
            for number, one in enumerate(pope_world(50).documents)
            for _ in range(copies)
        ]
        folder = tmp_path_factory.mktemp("runs")
        World("pope", documents).write(folder, "mai")
        World("pope", documents).write(folder, "small", "r", time="20260102_000000")
        reports.append(report([folder], ("10",)))
    rows = [row_of(found.table("differences"), "POPE", "MAI", "small R") for found in reports]
    single, images, no_images = rows
    assert [row["n"] for row in rows] == [50, 200, 200] and images["only this"] == 4 * single["only this"]
    assert images["p"] == single["p"] > 3 * no_images["p"]
    tens = [row_of(found.table("table-10"), "POPE", "MAI") for found in reports]
    for of, column in ((rows, "difference"), (tens, "score"), (tens, "transfer")):
        expected, wide, narrow = (row[column] for row in of)
        assert wide.value == pytest.approx(expected.value) == narrow.value
        assert width(wide) > 1.8 * width(narrow), column
        # Wilson's interval of a share of single documents is not that of the bootstrap.
        assert width(wide) == pytest.approx(width(expected), rel=0.1 if column == "transfer" else 1e-9)
    for found, words in zip(reports[1:], ("200 documents in 50 clusters", "too narrow"), strict=True):
        assert len([gap for gap in found.gaps if gap.startswith("POPE: ") and words in gap]) == 1


def width(cell: Any) -> float:
    low, high = cell.ends
    return float(high - low)


def test_documents_are_joined_by_common_images_and_by_rotations_of_a_question(tmp_path: Path) -> None:
    indices = {3: 7, 4: 1_000_007}
    documents = [
        Answers(
            *"AAAAA", images=(*images,), fields=(("gpt_eval_score", {"index": indices[n]}),) if n in indices else ()
        )
        for n, images in enumerate(("a", "ab", "b", "c", ""))
    ]
    World("t", documents).write(tmp_path, "large", "")
    runs = Runs.read([tmp_path])
    assert list(runs.clusters("t")) == [0, 0, 0, 1, 1]  # type: ignore[arg-type]
