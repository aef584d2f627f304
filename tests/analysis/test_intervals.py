"""Intervals and paired tests, against scipy, formulas and exact sums. Other tests ask only which of them is used."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from lmms_eval_mai.analysis.intervals import (
    Statistic,
    betting_p_value,
    bootstrap,
    difference,
    f1,
    holm,
    mcnemar,
    mean,
    paired_loss_p_value,
    paired_share_difference,
    ratio,
    share,
    swap_test,
)


def test_means_have_students_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = mean(values)
    reference = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.value, found.n) == (4, 4)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    same = mean([3.0, 3.0])
    assert (same.value, same.low, same.high) == (3.0, 3.0, 3.0)


Z = 1.959963985


@pytest.mark.parametrize(("part", "number"), [(0, 4), (3, 7), (90, 150), (150, 150)])
def test_shares_have_wilsons_interval(part: int, number: int) -> None:
    found, p, weight = share(part, number), part / number, Z**2 / number
    half = Z * math.sqrt(p * (1 - p) / number + weight / (4 * number))
    ends = [(p + weight / 2 + sign * half) / (1 + weight) for sign in (-1, 1)]
    assert (found.value, found.n) == (p, number) and (found.low, found.high) == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize(("better", "worse", "number"), [(9, 2, 150), (40, 40, 80), (0, 0, 4), (4, 0, 4)])
def test_paired_shares_have_agresti_and_mins_interval_and_mcnemars_exact_p(
    better: int, worse: int, number: int
) -> None:
    found, larger = paired_share_difference(better, worse, number), number + 2
    middle = (better - worse) / larger
    error = math.sqrt(better + worse + 1 - (better - worse) ** 2 / larger) / larger
    ends = [min(1, middle + sign * Z * error) for sign in (-1, 1)]
    assert (found.value, found.n) == ((better - worse) / number, number)
    assert (found.low, found.high) == pytest.approx(ends, abs=1e-9)
    tail = sum(math.comb(better + worse, one) for one in range(min(better, worse) + 1)) / 2 ** (better + worse)
    assert mcnemar(better, worse) == pytest.approx(min(1, 2 * tail))


def test_one_document_or_cluster_has_a_value_and_no_interval() -> None:
    rows = np.array([[0.25, 1]] * 3)
    for found in (mean([0.25]), bootstrap(rows[:1], ratio), bootstrap(rows, ratio, [7, 7, 7])):
        assert found.value == pytest.approx(0.25) and found.low is found.high is None


def test_holms_correction_keeps_the_order_of_the_tests() -> None:
    assert holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert holm([0.7, 0.6]) == [1, 1] and holm([]) == []


def of_mean(values: np.ndarray) -> np.ndarray:
    """Return the parts of a mean."""
    return np.column_stack([values, np.ones(len(values))])


def yes_no_answers() -> tuple[np.ndarray, np.ndarray]:
    """Return golds, and answers that are sometimes neither yes nor no."""
    random = np.random.default_rng(5)
    golds = random.choice(["yes", "no"], size=400)
    return golds, np.where(random.random(400) < 0.7, golds, random.choice(["yes", "no", "perhaps"], size=400))


def of_f1(golds: np.ndarray, answers: np.ndarray) -> np.ndarray:
    yes, no, right = answers == "yes", answers == "no", golds == "yes"
    return np.column_stack([yes & right, yes & ~right, no & right]).astype(float)


def two_means() -> np.ndarray:
    """Return the parts of two scores that are equal on nine of ten documents."""
    random = np.random.default_rng(3)
    first = random.random(300)
    return np.hstack([of_mean(one) for one in (first, np.where(random.random(300) < 0.9, first, 1 - first))])


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    ("parts", "statistic"),
    [
        (of_mean(np.round(np.random.default_rng(0).beta(0.5, 0.3, size=200), 1)), ratio),
        (two_means(), difference(ratio)),
        (of_f1(*yes_no_answers()), f1),
    ],
)
def test_bootstrap_has_the_interval_of_scipys_bootstrap_of_clusters_of_this_size(
    parts: np.ndarray, statistic: Statistic, size: int
) -> None:
    sums = parts.reshape(-1, size, parts.shape[1]).sum(axis=1)

    def resampled(rows: np.ndarray, axis: int) -> np.ndarray:
        return statistic(np.moveaxis(sums.T[:, rows.astype(int)].sum(axis=axis), 0, -1))

    clusters, rows = np.repeat(np.arange(len(sums)), size), (np.arange(len(sums)),)
    found = bootstrap(parts, statistic, clusters)
    assert found == bootstrap(parts, statistic, clusters if size > 1 else None)  # in every report
    expected = stats.bootstrap(rows, resampled, vectorized=True, n_resamples=2999, method="percentile", random_state=1)
    ends = expected.confidence_interval
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), abs=0.006)


@pytest.mark.parametrize("counts", [(9, 2, 9), (3, 0, 1), (40, 40, 0), (0, 0, 4)])
def test_swap_test_of_right_and_wrong_answers_is_mcnemars_exact_test(counts: tuple[int, int, int]) -> None:
    first, second = np.repeat([1.0, 0.0, 1.0], counts), np.repeat([0.0, 1.0, 1.0], counts)
    assert swap_test(of_mean(first), of_mean(second), ratio) == pytest.approx(mcnemar(counts[0], counts[1]))


def all_exchanges(first: np.ndarray, second: np.ndarray, statistic: Statistic, clusters: np.ndarray) -> float:
    """Return the share of all exchanges of whole clusters with a difference at least as large as the given one."""
    found = []
    for flips in itertools.product([False, True], repeat=int(clusters.max()) + 1):
        is_swapped = np.array(flips)[clusters][:, None]
        a, b = np.where(is_swapped, second, first).sum(axis=0), np.where(is_swapped, first, second).sum(axis=0)
        found.append(abs(statistic(a) - statistic(b)))
    return float(np.mean(np.array(found) >= found[0] - 1e-12))  # the first has no exchange


@pytest.mark.parametrize("seed", range(2))
def test_swap_test_counts_the_exchanges_of_whole_clusters(seed: int) -> None:
    random = np.random.default_rng(seed)
    clusters = np.array([0, 0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 6, 7])
    golds = random.choice(["yes", "no"], size=13)
    first = np.where(random.random(13) < 0.9, golds, "no")
    second = np.where(random.random(13) < 0.4, golds, "yes")
    means = of_mean(first == golds), of_mean(second == golds)
    assert swap_test(*means, ratio, clusters) == pytest.approx(all_exchanges(*means, ratio, clusters))
    f1s = of_f1(golds, first), of_f1(golds, second)
    assert swap_test(*f1s, f1, clusters) == pytest.approx(all_exchanges(*f1s, f1, clusters), abs=0.02)  # 9,999 of them


def least_gains(number: int, most: float, level: float) -> np.ndarray:
    """Return, for each number of losses, the least number of gains with which the test accepts."""
    least, gains = np.full(number + 1, number + 1.0), 0
    for lost in range(number + 1):  # one more loss needs more gains
        while gains <= number - lost and paired_loss_p_value(lost, gains, number, most) > level:
            gains += 1
        if gains > number - lost:
            break
        least[lost] = gains
    return least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "most"),
    [(100, 0.05), *(pytest.param(*one, marks=pytest.mark.long) for one in ((200, 0.03), (340, 0.01)))],
)
def test_the_exact_test_of_a_paired_loss_is_wrong_in_at_most_5_percent_for_all_gain_rates(
    number: int, most: float
) -> None:
    lost, least = np.arange(number + 1), least_gains(number, most, 0.05)
    for true in (most, 1.3 * most, 2 * most):  # the limit, and losses above it
        low, largest = np.geomspace(1e-5, (1 - true) / 4, 1500), (1 - true) / 2
        gains = np.concatenate([[0.0], low, largest - low, [largest]])[:, None]
        others = np.minimum(1, gains / (1 - gains - true))
        chances = stats.binom.pmf(lost, number, gains + true) * stats.binom.sf(least - 1, number - lost, others)
        size = chances.sum(axis=1).max()
        assert size <= 0.05 and (size > 0.044 or true > most)


def test_without_a_loss_299_documents_bound_it_by_one_point_and_the_bets_need_305() -> None:
    assert paired_loss_p_value(0, 0, 299, 0.01) <= 0.05 < paired_loss_p_value(0, 0, 298, 0.01)
    assert betting_p_value(np.zeros(305), 0.01) <= 0.05 < betting_p_value(np.zeros(304), 0.01)


@pytest.mark.parametrize("order", [lambda losses: losses, np.sort, lambda losses: -np.sort(-losses)])
def test_bets_are_wrong_in_at_most_5_percent_however_the_documents_are_sorted(
    order: Callable[[np.ndarray], np.ndarray],
) -> None:
    random, kinds = np.random.default_rng(7), np.array([1.0, -1.0, 0.5, -0.25, 0.0])
    for chances in ((0.04, 0.02, 0.0, 0.0, 0.94), (0.02, 0.0, 0.02, 0.04, 0.92), (0.3, 0.28, 0.0, 0.0, 0.42)):
        limit = float(kinds @ chances)
        found = [betting_p_value(order(random.choice(kinds, 600, p=chances)), limit) for _ in range(800)]
        assert np.mean(np.array(found) <= 0.05) <= 0.065  # two standard errors more
