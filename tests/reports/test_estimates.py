"""F1 of POPE, and the interval of a comparison."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from lmms_eval_mai.reports.estimates import CODES, compare, f1, score
from lmms_eval_mai.reports.records import Document
from lmms_eval_mai.statistics import bootstrap


def test_f1_is_lmms_evals_f1_also_if_some_answers_are_neither_yes_nor_no(task_manager: Any) -> None:
    from lmms_eval.tasks.pope.utils import pope_aggregate_f1_score

    golds, answers = yes_no_answers()
    records = [{"prediction": a, "ground_truth": g} for a, g in zip(answers, golds, strict=True)]
    assert bootstrap(coded(answers, golds), f1(0, 1)).value == pytest.approx(pope_aggregate_f1_score(records))


def test_bootstrap_of_f1_has_the_interval_of_scipys_bootstrap() -> None:
    golds, answers = yes_no_answers()

    def reference_f1(index: np.ndarray, axis: int) -> np.ndarray:
        said, is_yes = answers[index.astype(int)], golds[index.astype(int)] == "yes"
        right = ((said == "yes") & is_yes).sum(axis=axis)
        precision = right / (said == "yes").sum(axis=axis)
        recall = right / (((said == "yes") | (said == "no")) & is_yes).sum(axis=axis)
        return 2 * precision * recall / (precision + recall)

    found = bootstrap(coded(answers, golds), f1(0, 1))
    reference = stats.bootstrap(
        (np.arange(400),), reference_f1, vectorized=True, n_resamples=2999, method="percentile", rng=4
    )
    assert found.low == pytest.approx(reference.confidence_interval.low, abs=0.006)
    assert found.high == pytest.approx(reference.confidence_interval.high, abs=0.006)


def yes_no_answers() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    golds = random.choice(["yes", "no"], size=400)
    return golds, np.where(random.random(400) < 0.7, golds, random.choice(["yes", "no", "perhaps"], size=400))


def coded(answers: np.ndarray, golds: np.ndarray) -> np.ndarray:
    return np.array([[CODES.get(a, 2), CODES[g]] for a, g in zip(answers, golds, strict=True)])


def test_f1_is_0_if_no_answer_is_yes() -> None:
    found = bootstrap(np.array([[1, 1], [1, 1]]), f1(0, 1))
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def documents(*scores: float, labels: bool = False) -> list[Document]:
    both = [("yes" if score else "no", "yes") if labels else None for score in scores]
    return [Document(number, "yes", score, both[number]) for number, score in enumerate(scores)]


def test_difference_of_right_and_wrong_answers_has_an_interval_even_if_the_methods_never_differ() -> None:
    found = compare(documents(1, 0, 1, 1), documents(1, 0, 1, 1), "realworldqa")
    assert found is not None and (found.only_first, found.only_second, found.p) == (0, 0, 1.0)
    assert found.difference.value == 0 and found.difference.low < -30 and found.difference.high > 30
    found = compare(documents(*[1] * 80, *[0] * 20), documents(*[1] * 60, *[0] * 40), "realworldqa")
    assert found is not None and (found.only_first, found.only_second, found.difference.value) == (20, 0, 20)
    # Agresti and Min: (20 -+ 1.96 * sqrt(21 - 400 / 102)) / 102.
    assert (found.difference.low, found.difference.high) == pytest.approx(
        (20 / 1.02 - 7.944, 20 / 1.02 + 7.944), abs=0.01
    )


def test_differences_of_f1_and_of_scores_between_0_and_1_have_bootstrap_intervals() -> None:
    found = compare(documents(1, 0, 1, labels=True), documents(1, 1, 1, labels=True), "pope")
    assert found is not None and (found.only_first, found.only_second, found.p) == (0, 1, 1.0)
    assert found.difference.value == pytest.approx(80 - 100)
    found = compare(documents(0.5, 0, 1), documents(0.5, 0.2, 1), "infovqa_val")
    assert found is not None and found.p is None and found.only_first is None
    assert (found.difference.low, found.difference.high) == pytest.approx((-20, 0))


def test_one_document_has_no_interval_for_f1() -> None:
    found = score(documents(1, labels=True), "pope")
    assert found is not None and (found.value, found.n, found.low, found.high) == (100, 1, None, None)
    assert found.standard_error is None
