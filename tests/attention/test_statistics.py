"""Intervals and paired tests of the attention analysis."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from support.arithmetic import few

from lmms_eval_mai.attention.statistics import (
    band,
    holm,
    mean_interval,
    paired_test,
    score_interval,
    share_interval,
)

SCORES = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40)


def test_interval_of_a_mean_is_that_of_students_t_distribution() -> None:
    # t of 0.975 with 4 degrees of freedom is 2.776; the standard error is sqrt(2.5 / 5).
    found = mean_interval([1, 2, 3, 4, 5])
    assert found.mean == 3 and found.documents == 5
    assert (found.low, found.high) == pytest.approx((3 - 2.7764 * 0.70711, 3 + 2.7764 * 0.70711), abs=1e-4)


def test_one_document_has_a_mean_and_no_interval() -> None:
    found = mean_interval([0.25])
    assert found.mean == 0.25 and math.isnan(found.low) and math.isnan(found.high)


def test_band_has_the_interval_of_each_value() -> None:
    values = np.random.default_rng(0).random((7, 2, 3))
    found = band(list(values))
    assert found.mean.shape == (2, 3) and found.documents == 7
    one = mean_interval(list(values[:, 1, 2]))
    assert (found.mean[1, 2], found.low[1, 2], found.high[1, 2]) == pytest.approx((one.mean, one.low, one.high))


@few
@given(count=st.integers(1, 3000), data=st.data())
def test_interval_of_a_share_is_wilsons(count: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, count))
    found = share_interval(part, count)
    expected = binomtest(part, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= found.low <= found.mean <= found.high <= 1


def test_scores_between_0_and_1_get_the_interval_of_their_mean() -> None:
    assert score_interval([1.0, 0.0, 0.5]) == mean_interval([1.0, 0.0, 0.5])
    assert score_interval([1.0, 0.0, 1.0]) == share_interval(2, 3)


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
