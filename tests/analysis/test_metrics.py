"""Scores, differences and their p from a table of samples."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lmms_eval_mai.analysis.intervals import mcnemar
from lmms_eval_mai.analysis.runs.metrics import Comparison, compare, difference_interval, plain, score


def samples(scores: Any, predicted: Any = None, gold: Any = None) -> pd.DataFrame:
    table = {"score": scores, "predicted": predicted, "gold": gold, "group": math.nan, "is_main": True}
    return pd.DataFrame(table).astype({"score": float})


def yes_no(predicted: list[str], gold: list[str]) -> pd.DataFrame:
    return samples([float(a == b) for a, b in zip(predicted, gold, strict=True)], predicted, gold)


def compared(*given: Any) -> Comparison:
    found = compare(*given)
    assert found is not None
    return found


def interval(found: Comparison) -> tuple[float, float]:
    assert found.difference.low is not None and found.difference.high is not None
    return found.difference.low, found.difference.high


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
    low, high = interval(found)
    assert low < -30 and high > 30


def test_clusters_without_any_difference_between_them_count_as_one_document_each() -> None:
    found = score(plain(pd.Series([True] * 8)), "", pd.Series([0, 0, 0, 0, 1, 1, 2, 3]))
    assert found is not None and (found.value, found.n) == (100, 8)
    assert found.low == pytest.approx(51.01, abs=0.01)  # Wilson's for 4 of 4; 67.6 for 8 of 8


def test_a_difference_that_is_the_same_in_every_resample_has_an_interval() -> None:
    parts = np.tile([1.0, 0.25, 1.0], (40, 1))  # two scores that differ by 0.75 on each document
    for clusters, least in ((None, 0.04), (np.repeat(np.arange(4), 10), 0.3)):
        found = difference_interval(parts, lambda sums: (sums[..., 0] - sums[..., 1]) / sums[..., 2], clusters)
        assert found.value == 0.75 and found.high == min(1, 0.75 + (0.75 - found.low))
        assert found.low < 0.75 - least


def test_differences_of_scores_between_0_and_1_have_a_bootstrap_interval_and_a_p() -> None:
    found = compared(samples([0.5, 0, 1]), samples([0.5, 0.2, 1]), "infovqa_val", None)
    assert (found.only_first, found.only_second, found.p) == (None, None, 1.0)
    assert interval(found) == pytest.approx((-20, 0))


def test_p_of_yes_no_questions_is_that_of_f1() -> None:
    golds = ["yes"] * 200 + ["no"] * 100
    # The second method says yes to 100 documents more of each gold: as many answers are right, and F1 is higher.
    first, second = ["yes"] * 100 + ["no"] * 200, ["yes"] * 300
    found = compared(yes_no(second, golds), yes_no(first, golds), "pope", None)
    assert (found.only_first, found.only_second) == (100, 100) and mcnemar(100, 100) == 1
    assert found.difference.value == pytest.approx(80 - 200 / 3) and interval(found)[0] > 0
    assert found.p < 0.01
