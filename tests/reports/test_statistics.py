"""Intervals and tests against published values, against scipy, and against exact sums."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lmms_eval_mai.reports import statistics
from lmms_eval_mai.reports.statistics import bootstrap, column_mean, f1, false_discovery, mcnemar, mean, share


@pytest.mark.parametrize(
    ("count", "number", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_of_newcombe_1998(count: int, number: int, low: float, high: float) -> None:
    found = share(count, number)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.value == count / number


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (3, 0), (121, 59), (5, 5), (2, 9)])
def test_mcnemars_exact_p_is_the_two_sided_sum_of_binomial_probabilities(only_first: int, only_second: int) -> None:
    number, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(number, k) for k in range(least + 1)) / 2**number
    assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(only_first, only_second) == mcnemar(only_second, only_first)


def test_means_have_students_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = mean(values)
    reference = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert found.standard_error == pytest.approx(values.std(ddof=1) / 2)
    same = mean(np.array([3.0, 3.0]))
    assert (same.value, same.low, same.high) == (3.0, 3.0, 3.0)


def test_bootstrap_of_a_mean_has_the_interval_of_scipys_bootstrap() -> None:
    values = np.round(np.random.default_rng(0).beta(0.5, 0.3, size=200), 1)
    found = bootstrap(values[:, None], column_mean(0))
    reference = stats.bootstrap((values,), np.mean, n_resamples=4999, method="percentile", rng=1)
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(reference.confidence_interval.low, abs=0.004)
    assert found.high == pytest.approx(reference.confidence_interval.high, abs=0.004)
    assert found.standard_error == pytest.approx(reference.standard_error, rel=0.05)


def test_paired_bootstrap_has_the_interval_of_scipys_paired_bootstrap() -> None:
    random = np.random.default_rng(3)
    first = (random.random(300) < 0.8).astype(float)
    second = np.where(random.random(300) < 0.9, first, 1 - first)  # the same answer to nine of ten documents

    def difference(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return column_mean(0)(rows, weights) - column_mean(1)(rows, weights)

    found = bootstrap(np.stack([first, second], axis=1), difference)
    reference = stats.bootstrap(
        (first, second),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=4999,
        method="percentile",
        rng=2,
    )
    assert found.low == pytest.approx(reference.confidence_interval.low, abs=0.006)
    assert found.high == pytest.approx(reference.confidence_interval.high, abs=0.006)
    unpaired = math.hypot(first.std(), second.std()) / math.sqrt(300)
    assert found.standard_error < 0.8 * unpaired


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
    return np.array([[statistics.CODES.get(a, 2), statistics.CODES[g]] for a, g in zip(answers, golds, strict=True)])


def test_f1_is_0_if_no_answer_is_yes() -> None:
    found = bootstrap(np.array([[1, 1], [1, 1]]), f1(0, 1))
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_adjusted_p_values_are_those_of_benjamini_and_hochberg_1995() -> None:
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1,
    ]
    assert sum(one <= 0.05 for one in false_discovery(p)) == 4  # their example: four rejections at 0.05
    assert false_discovery([]) == []


def test_the_same_documents_give_the_same_interval_in_every_report() -> None:
    rows = np.random.default_rng(0).random((50, 1))
    assert bootstrap(rows, column_mean(0)) == bootstrap(rows[::-1], column_mean(0))
