"""Intervals and paired tests. All intervals are 95% intervals over documents.

Two methods on the same documents are compared pair by pair, never by two intervals: `paired_test` counts the documents
on which one of them is better, `paired_share_difference` has the interval of such counts, and `bootstrap` resamples
documents together with the answers of both methods.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
LEVEL = 0.95
Z = float(stats.norm.ppf((1 + LEVEL) / 2))
RESAMPLES = 9999
SEED = 20260410
_BATCH = 500
"""Resamples that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value of n documents, its interval, and its standard error. Interval and error are nan if one document is not
    enough to estimate them."""

    value: float
    low: float
    high: float
    standard_error: float
    n: int


@dataclass(frozen=True, slots=True)
class Band:
    """Means with their intervals. All arrays have the shape of one document's values."""

    mean: Array
    low: Array
    high: Array
    standard_error: Array
    n: int


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The exact two-sided sign test of two methods on the same documents. Where all scores are 0 or 1, it is the exact
    McNemar test."""

    better: int
    """Documents on which the first method has the higher score."""
    worse: int
    p: float
    """Probability of a difference at least as large, if neither method were better."""


# --- one method ---


def share(part: int, number: int) -> Interval:
    """Return a share with Wilson's interval, which is valid for small numbers and near 0 and 1 too. `number` must be
    above 0."""
    value = part / number
    centre = (value + Z * Z / (2 * number)) / (1 + Z * Z / number)
    half = Z / (1 + Z * Z / number) * math.sqrt(value * (1 - value) / number + Z * Z / (4 * number * number))
    # Rounding may put the end of an interval at a hair's breadth from 0, 1 or the share itself.
    low, high = min(max(centre - half, 0.0), value), max(min(centre + half, 1.0), value)
    return Interval(value, low, high, math.sqrt(value * (1 - value) / number), number)


def band(values: Sequence[Any] | Array) -> Band:
    """Return the mean over documents with the interval of Student's t distribution.

    `values`: one array or number per document, all of the same shape. At least one.
    """
    stacked = np.asarray(values, dtype=np.float64)
    n = len(stacked)
    mean = stacked.mean(axis=0)
    if n < 2:
        unknown = np.full_like(mean, math.nan)
        return Band(mean, unknown, unknown, unknown, n)
    error = stacked.std(axis=0, ddof=1) / math.sqrt(n)
    half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * error
    return Band(mean, mean - half, mean + half, error, n)


def mean(values: Sequence[float] | Array) -> Interval:
    """Return the mean of at least one number, with the interval of Student's t distribution."""
    found = band(values)
    return Interval(float(found.mean), float(found.low), float(found.high), float(found.standard_error), found.n)


def is_right_or_wrong(scores: Sequence[float] | Array) -> bool:
    """Return whether all scores are 0 or 1."""
    return bool(np.isin(scores, (0.0, 1.0)).all())


def mean_score(scores: Sequence[float] | Array) -> Interval:
    """Return the mean score: with Wilson's interval if all scores are 0 or 1, else with that of Student's t
    distribution."""
    return share(int(sum(scores)), len(scores)) if is_right_or_wrong(scores) else mean(scores)


# --- two methods on the same documents ---


def paired_share_difference(better: int, worse: int, number: int) -> Interval:
    """Return the difference of two shares of the same documents, with the interval of Agresti and Min (2005): Wald's
    for paired shares, with half a document added to each of the four cells. So it is wider than 0 even if the two
    methods never differ.

    `better`, `worse`: documents that only the first, or only the second method has right. `number` must be above 0.
    """
    middle = (better - worse) / (number + 2)
    variance = (better + worse + 1) - (better - worse) ** 2 / (number + 2)
    error = math.sqrt(variance) / (number + 2)
    low, high = max(middle - Z * error, -1.0), min(middle + Z * error, 1.0)
    return Interval((better - worse) / number, low, high, error, number)


def paired_test(first: Sequence[float] | Array, second: Sequence[float] | Array) -> PairedTest:
    """Compare the scores of two methods on the same documents, in the same order."""
    better = sum(bool(a > b) for a, b in zip(first, second, strict=True))
    worse = sum(bool(a < b) for a, b in zip(first, second, strict=True))
    return PairedTest(better, worse, mcnemar(better, worse))


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided p value of the exact McNemar test. Arguments: the numbers of documents on which only one of
    two methods is right. 1 if there are none."""
    number = better + worse
    return float(stats.binomtest(better, number).pvalue) if number else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Return the p values corrected for their number by Holm's method, in the same order."""
    found = [0.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        found[index] = largest
    return found


# --- the bootstrap ---

Statistic = Callable[[npt.NDArray[Any], Array], Array]
"""A statistic of resampled documents: see `bootstrap`."""


def bootstrap(rows: npt.NDArray[Any], statistic: Statistic) -> Interval:
    """Return a statistic of documents with its percentile bootstrap interval.

    `rows` has one row for each document. `statistic(distinct, weights)` gets the distinct rows and, for each resample,
    the number of documents with each of them (shape: resamples x distinct rows); it returns one number for each
    resample. Documents with equal rows are interchangeable, so a multinomial draw of their numbers is a resample of the
    documents, and 9,000 answers to yes-no questions need no 9,000 draws.
    """
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    value = float(statistic(distinct, counts[None, :].astype(float))[0])
    if len(rows) < 2:
        return Interval(value, math.nan, math.nan, math.nan, len(rows))
    random = np.random.default_rng(SEED)
    found = [
        statistic(distinct, _draw(random, counts, min(_BATCH, RESAMPLES - start)))
        for start in range(0, RESAMPLES, _BATCH)
    ]
    resamples = np.concatenate(found)
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), float(resamples.std(ddof=1)), len(rows))


def _draw(random: np.random.Generator, counts: npt.NDArray[Any], resamples: int) -> Array:
    number = int(counts.sum())
    return random.multinomial(number, counts / number, size=resamples).astype(float)


def column_mean(column: int) -> Statistic:
    """Return the statistic that is the mean of one column."""
    return lambda rows, weights: np.asarray(weights @ rows[:, column] / weights.sum(axis=1))
