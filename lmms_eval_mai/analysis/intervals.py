"""Intervals and paired tests. All intervals are 95% intervals over documents.

Two methods on the same documents are compared pair by pair, never by two intervals: `mcnemar` and
`paired_share_difference` take the numbers of documents on which one of them is better, `bootstrap` resamples documents
together with the answers of both methods, and `swap_test` exchanges the answers of both methods.

Documents about one image are not independent of each other. `bootstrap` and `swap_test` resample and exchange whole
clusters of such documents. Their scores are sums over documents: a statistic is a function of these sums, for example
`ratio` of (score, 1) for a mean, and `f1` of (true positives, false positives, false negatives).
"""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Array = npt.NDArray[np.float64]
LEVEL = 0.95
Z = float(special.ndtri((1 + LEVEL) / 2))
RESAMPLES = 9999
SEED = 20260410


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number from n documents, with the ends of its 95% interval, and the paper's number if the paper has it."""

    value: float
    n: int
    low: float | None = None
    """None: not known, because the run has no samples file, or because there is only one document."""
    high: float | None = None
    paper: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval. If they are not known, both are the number itself."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    def percent(self) -> "Estimate":
        """Return a share or a score of 0 to 1 in percent, or the difference of two in points."""
        low, high = (None if end is None else 100 * end for end in (self.low, self.high))
        return replace(self, value=100 * self.value, low=low, high=high)

    def shown(self, digits: int) -> str:
        """Return the number with its interval in brackets, as people read it."""
        if self.low is None or self.high is None:
            return f"{self.value:z.{digits}f}"
        return f"{self.value:z.{digits}f} ({self.low:z.{digits}f} to {self.high:z.{digits}f})"


# --- one method ---


def share(part: int, number: int) -> Estimate:
    """Return a share with Wilson's interval, which is valid for small numbers and near 0 and 1 too. `number` must be
    above 0."""
    test = stats.binomtest(part, number)
    ends = test.proportion_ci(LEVEL, method="wilson")
    return Estimate(test.statistic, number, float(ends.low), float(ends.high))


def mean(values: Sequence[float] | Array) -> Estimate:
    """Return the mean of at least one number, with the interval of Student's t distribution."""
    numbers = np.asarray(values, dtype=np.float64)
    n, value = len(numbers), float(np.mean(numbers))
    if n < 2:
        return Estimate(value, n)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * stats.sem(numbers))
    return Estimate(value, n, value - half, value + half)


def is_right_or_wrong(scores: Sequence[float] | Array) -> bool:
    return bool(np.isin(scores, (0.0, 1.0)).all())


# --- two methods on the same documents ---


def paired_share_difference(better: int, worse: int, number: int) -> Estimate:
    """Return the difference of two shares of the same documents, with the interval of Agresti and Min (2005): Wald's
    for paired shares, with half a document added to each of the four cells. So it is wider than 0 even if the two
    methods never differ.

    `better`, `worse`: documents that only the first, or only the second method has right. `number` must be above 0.
    """
    middle = (better - worse) / (number + 2)
    variance = (better + worse + 1) - (better - worse) ** 2 / (number + 2)
    error = math.sqrt(variance) / (number + 2)
    low, high = max(middle - Z * error, -1.0), min(middle + Z * error, 1.0)
    return Estimate((better - worse) / number, number, low, high)


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided p value of the exact McNemar test. The arguments are those of `paired_share_difference`."""
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Return the p values corrected for their number by Holm's method, in the same order."""
    order = np.argsort(p)
    corrected = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * np.take(p, order)))
    return [float(value) for value in corrected[np.argsort(order)]]


# --- resampling ---

Statistic = Callable[[Array], Array]
"""A function of sums: gets an array of the shape (..., parts) and returns one of the shape (...)."""


def ratio(sums: Array) -> Array:
    """Return the mean of documents from the sums of (score, 1)."""
    means: Array = sums[..., 0] / sums[..., 1]
    return means


def f1(sums: Array) -> Array:
    """Return F1 from the sums of (true positives, false positives, false negatives). 0 if all are 0."""
    total = 2 * sums[..., 0] + sums[..., 1] + sums[..., 2]
    values: Array = np.divide(2 * sums[..., 0], total, out=np.zeros_like(total), where=total > 0)
    return values


def difference(statistic: Statistic) -> Statistic:
    """Return the statistic of the parts of two methods side by side: the first method's minus the second one's."""

    def first_minus_second(sums: Array) -> Array:
        first, second = np.split(sums, 2, axis=-1)
        return statistic(first) - statistic(second)

    return first_minus_second


def bootstrap(parts: Array, statistic: Statistic, clusters: Sequence[int] | Array | None = None) -> Estimate:
    """Return a statistic of documents with its percentile bootstrap interval.

    `parts`: one row of numbers for each document. `clusters`: the cluster of each document; whole clusters are drawn.
    None: all documents are independent of each other.
    """
    sums = _cluster_sums(parts, clusters)
    value = float(statistic(sums.sum(axis=0)))
    if len(sums) < 2:
        return Estimate(value, len(parts))
    # Equal rows are interchangeable: 9,000 answers to yes-no questions need no 9,000 draws.
    distinct, counts = np.unique(sums, axis=0, return_counts=True)
    random, shares = np.random.default_rng(SEED), counts / len(sums)
    blocks = [random.multinomial(len(sums), shares, RESAMPLES // 9) @ distinct for _ in range(9)]  # for the memory
    resampled = statistic(np.concatenate(blocks))
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, len(parts), float(low), float(high))


def swap_test(
    first: Array, second: Array, statistic: Statistic, clusters: Sequence[int] | Array | None = None
) -> float:
    """Return the two-sided p value of a difference between two methods on the same documents.

    If neither method were better, the answers of both could be exchanged in any cluster. p is the share of all
    exchanges whose difference is at least as large: McNemar's exact test if no cluster differs by more than one right
    answer; else 9,999 random exchanges.

    `first`, `second`: one row of numbers for each document.
    """
    a, b = _cluster_sums(first, clusters), _cluster_sums(second, clusters)
    if np.array_equal(a, b):
        return 1.0
    if statistic is ratio and np.array_equal(a[:, 1], b[:, 1]):
        steps = a[:, 0] - b[:, 0]
        steps = steps[steps != 0]
        if (np.abs(steps) == 1).all():
            return mcnemar(int((steps > 0).sum()), int((steps < 0).sum()))
    # scipy's permutation_test of 9,000 documents needs 40 seconds for F1, which is not a sum over documents.
    pairs, counts = np.unique(np.hstack([a, b]), axis=0, return_counts=True)
    a, b = np.split(pairs, 2, axis=1)
    swapped = np.random.default_rng(SEED).binomial(counts, 0.5, size=(RESAMPLES, len(counts)))
    moved = swapped @ (b - a)
    total_a, total_b = counts @ a, counts @ b
    seen = float(statistic(total_a) - statistic(total_b))
    differences = statistic(total_a + moved) - statistic(total_b - moved)
    return float((1 + (np.abs(differences) >= abs(seen) - 1e-12).sum()) / (1 + RESAMPLES))


def _cluster_sums(parts: Array, clusters: Sequence[int] | Array | None) -> Array:
    parts = np.asarray(parts, dtype=np.float64)
    if clusters is None:
        return parts
    _, cluster = np.unique(clusters, return_inverse=True)
    return np.column_stack([np.bincount(cluster, column) for column in parts.T])


# --- a bound on a loss ---

GAIN_RATES = 200
"""Numbers of gain rates from each end, of which `paired_loss_p_value` takes the worst."""
BOLDEST = 0.98
"""The largest bet of `betting_p_value`, as a share of the capital."""


@functools.lru_cache(maxsize=100_000)
def paired_loss_p_value(worse: int, better: int, number: int, most: float) -> float:
    """Return the p value of the hypothesis that a method is right at least `most` less often than a baseline, by its
    answers to `number` questions: `worse` of them only the baseline has right, `better` only the method.

    The exact unconditional test of paired shares, ordered by the score of Tango (Statistics in Medicine 17, 891, 1998):
    the largest probability, over all rates of gains, of counts at least as extreme (Lloyd and Moldovan, Statistics in
    Medicine 27, 3540, 2008). The rates are a grid that is dense at both ends, where few documents are gained, and where
    few are neither lost nor gained.
    """
    lost: Array = np.arange(number + 1, dtype=np.float64)
    # For each number of losses, the least number of gains that is at least as extreme, by bisection.
    seen = _tango_score(np.array([float(worse)]), np.array([float(better)]), number, most)[0] - 1e-9
    low, high = np.full(number + 1, -1), number - lost + 1
    while (high - low > 1).any():
        middle = np.maximum((low + high) // 2, 0)
        extreme = _tango_score(lost, middle, number, most) >= seen
        high, low = np.where(extreme, np.minimum(middle, high), high), np.where(extreme, low, np.maximum(middle, low))
        low = np.minimum(low, high - 1)
    largest = (1 - most) / 2  # then each document is lost or gained
    small = np.geomspace(0.02 / number, largest / 2, GAIN_RATES)
    rates = np.concatenate([[0.0], small, largest - small, [largest]])[:, None]
    others = np.minimum(1, rates / (1 - rates - most))
    # scipy's probabilities of all numbers of losses need ten times as long. Those that are left out add nothing.
    ways = special.gammaln(number + 1) - special.gammaln(lost + 1) - special.gammaln(number - lost + 1)
    chances = np.exp(ways + lost * np.log(rates + most) + (number - lost) * np.log1p(-rates - most))
    rate, losses = np.nonzero(chances > 1e-12)
    more = stats.binom.sf(high[losses] - 1, number - lost[losses], others[rate, 0])
    return float(min(1.0, np.bincount(rate, chances[rate, losses] * more).max()))


def _tango_score(worse: Array, better: Array, number: int, most: float) -> Array:
    """Return the score: large if the loss is far below `most`. `gains`: the likeliest rate of gains if it is `most`."""
    b = worse * (1 + most) + better * (1 - most) - 2 * number * most
    gains = (b + np.sqrt(b * b + 8 * number * better * most * (1 - most))) / (4 * number)
    score: Array = (number * most - worse + better) / np.sqrt(number * (2 * gains + most * (1 - most)))
    return score


def betting_p_value(losses: Array, most: float) -> float:
    """Return the p value of the hypothesis that the mean loss is at least `most`, for losses from -1 to 1 of any
    distribution.

    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B 86, 2024; arXiv
    2010.09686), aGRAPA: a capital of 1 is bet on losses below `most`, one after another. Under the hypothesis no bet
    wins on average, so the capital ever exceeds 1/p with a probability of at most p (Ville).

    The order is drawn here, because documents are often sorted by kind: bets would stop before the first kind that
    loses. The seed is made of the losses: with one order for all, up to 48% of the samples of 2,360 sorted documents
    had a false result.
    """
    losses = np.random.default_rng(zlib.crc32(losses.tobytes())).permutation(losses)
    won = (most - losses) / (1 - most)
    total, squares = (np.concatenate([[0.0], np.cumsum(one)[:-1]]) for one in (won, won * won))
    bets = np.clip((total + most) / (squares + most), 0, BOLDEST)
    return float(np.exp(-max(0.0, np.log1p(bets * won).cumsum().max())))
