"""Intervals and paired tests, against published values, against scipy, and against exact sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.arithmetic import few

from lmms_eval_mai.statistics import (
    band,
    bootstrap,
    column_mean,
    holm,
    mcnemar,
    mean,
    mean_score,
    paired_share_difference,
    paired_test,
    share,
)

SCORES = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40)


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


def test_interval_of_a_mean_is_that_of_students_t_distribution() -> None:
    # t of 0.975 with 4 degrees of freedom is 2.776; the standard error is sqrt(2.5 / 5).
    found = mean([1, 2, 3, 4, 5])
    assert found.value == 3 and found.n == 5
    assert (found.low, found.high) == pytest.approx((3 - 2.7764 * 0.70711, 3 + 2.7764 * 0.70711), abs=1e-4)


def test_one_document_has_a_mean_and_no_interval() -> None:
    found = mean([0.25])
    assert found.value == 0.25 and math.isnan(found.low) and math.isnan(found.high)


def test_band_has_the_interval_of_each_value() -> None:
    values = np.random.default_rng(0).random((7, 2, 3))
    found = band(list(values))
    assert found.mean.shape == (2, 3) and found.n == 7
    one = mean(list(values[:, 1, 2]))
    assert (found.mean[1, 2], found.low[1, 2], found.high[1, 2]) == pytest.approx((one.value, one.low, one.high))


@few
@given(count=st.integers(1, 3000), data=st.data())
def test_interval_of_a_share_is_wilsons(count: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, count))
    found = share(part, count)
    expected = stats.binomtest(part, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_scores_between_0_and_1_get_the_interval_of_their_mean() -> None:
    assert mean_score([1.0, 0.0, 0.5]) == mean([1.0, 0.0, 0.5])
    assert mean_score([1.0, 0.0, 1.0]) == share(2, 3)


def test_paired_test_is_the_exact_test_of_mcnemar() -> None:
    first = [1.0] * 9 + [0.0] * 2 + [1.0] * 50
    second = [0.0] * 9 + [1.0] * 2 + [1.0] * 50
    found = paired_test(first, second)
    assert (found.better, found.worse) == (9, 2)
    # Two-sided, from the binomial distribution with 11 trials: 2 * (1 + 11 + 55) / 2048.
    assert found.p == pytest.approx(134 / 2048)


@few
@given(SCORES)
def test_equal_scores_do_not_differ(scores: list[float]) -> None:
    found = paired_test(scores, scores)
    assert (found.better, found.worse, found.p) == (0, 0, 1.0)


def test_holm_multiplies_the_smallest_value_by_the_number_of_tests_and_keeps_the_order() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


@few
@given(st.lists(st.floats(0, 1), max_size=20))
def test_corrected_values_are_not_smaller_and_at_most_bonferronis(p: list[float]) -> None:
    for before, after in zip(p, holm(p), strict=True):
        assert before <= after <= min(1.0, before * len(p)) + 1e-12


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


def test_the_same_documents_give_the_same_interval_in_every_report() -> None:
    rows = np.random.default_rng(0).random((50, 1))
    assert bootstrap(rows, column_mean(0)) == bootstrap(rows[::-1], column_mean(0))


def test_a_single_document_has_no_bootstrap_interval() -> None:
    found = bootstrap(np.array([[0.4]]), column_mean(0))
    assert found.value == 0.4 and math.isnan(found.low) and math.isnan(found.high)


@few
@given(counts=st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30)).filter(any))
def test_interval_of_a_paired_difference_is_walds_with_half_a_document_more_in_each_cell(
    counts: tuple[int, int, int],
) -> None:
    better, worse, same = counts
    found = paired_share_difference(better, worse, better + worse + same)
    # Per document: 1, -1 or 0. The four cells of the table are better, worse, and the two cells of `same`.
    values = np.array([1] * (2 * better + 1) + [-1] * (2 * worse + 1) + [0] * (2 * same + 2))
    error = values.std() / math.sqrt(len(values) / 2)
    low, high = values.mean() - 1.959964 * error, values.mean() + 1.959964 * error
    assert (found.low, found.high) == pytest.approx((max(low, -1), min(high, 1)), abs=1e-6)
    assert found.value == (better - worse) / (better + worse + same)
    assert -1 <= found.low < found.high <= 1 and found.low <= found.value <= found.high
