"""Intervals and tests, with scipy's distributions. All intervals are 95% intervals.

Two methods on the same documents are compared pair by pair, never by two intervals: `mcnemar` counts the documents that
only one of them has right, and `bootstrap` resamples documents together with the answers of both methods.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 9999
SEED = 20260410
_BATCH = 500
"""Resamples that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, its interval, and its standard error."""

    value: float
    low: float
    high: float
    standard_error: float


def share(count: int, number: int) -> Interval:
    """Return a share with its Wilson interval. `number` must be above 0."""
    interval = stats.binomtest(count, number).proportion_ci(LEVEL, method="wilson")
    value = count / number
    return Interval(value, float(interval.low), float(interval.high), float(np.sqrt(value * (1 - value) / number)))


def mean(values: Array) -> Interval:
    """Return a mean with the interval of Student's t distribution; for tokens and seconds. One value has the interval
    of the value itself."""
    value = float(values.mean())
    error = float(stats.sem(values)) if len(values) > 1 else 0.0
    if not error:
        return Interval(value, value, value, 0.0)
    low, high = stats.t.interval(LEVEL, len(values) - 1, loc=value, scale=error)
    return Interval(value, float(low), float(high), error)


def bootstrap(rows: npt.NDArray[Any], statistic: Callable[[npt.NDArray[Any], Array], Array]) -> Interval:
    """Return a statistic of documents with its percentile bootstrap interval.

    `rows` has one row for each document. `statistic(distinct, weights)` gets the distinct rows and, for each resample,
    the number of documents with each of them (shape: resamples x distinct rows); it returns one number for each
    resample. Documents with equal rows are interchangeable, so a multinomial draw of their numbers is a resample of the
    documents, and 9,000 answers to yes-no questions need no 9,000 draws.
    """
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    value = float(statistic(distinct, counts[None, :].astype(float))[0])
    random = np.random.default_rng(SEED)
    found = [
        statistic(distinct, _draw(random, counts, min(_BATCH, RESAMPLES - start)))
        for start in range(0, RESAMPLES, _BATCH)
    ]
    resamples = np.concatenate(found)
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), float(resamples.std(ddof=1)))


def _draw(random: np.random.Generator, counts: npt.NDArray[Any], resamples: int) -> Array:
    number = int(counts.sum())
    return random.multinomial(number, counts / number, size=resamples).astype(float)


def column_mean(column: int) -> Callable[[npt.NDArray[Any], Array], Array]:
    """Return the statistic that is the mean of one column."""
    return lambda rows, weights: np.asarray(weights @ rows[:, column] / weights.sum(axis=1))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value of the exact McNemar test, two-sided. Arguments: the numbers of documents that only one of two
    methods has right. 1 if there are none."""
    number = only_first + only_second
    return float(stats.binomtest(only_first, number, 0.5).pvalue) if number else 1.0


def false_discovery(p_values: list[float]) -> list[float]:
    """Return p-values that are adjusted for the number of tests (Benjamini and Hochberg)."""
    return [float(p) for p in stats.false_discovery_control(p_values)] if p_values else []


CODES = {"yes": 0, "no": 1}
"""Label -> its number in the rows of `f1`. Every other answer is 2."""


def f1(prediction: int, gold: int) -> Callable[[npt.NDArray[Any], Array], Array]:
    """Return the statistic that is POPE's F1 of "yes", as lmms-eval computes it. Arguments: the columns of the codes.

    An answer that is neither yes nor no is in neither the precision nor the recall.
    """

    def statistic(rows: npt.NDArray[Any], weights: Array) -> Array:
        said_yes, said_no, is_yes = rows[:, prediction] == 0, rows[:, prediction] == 1, rows[:, gold] == 0
        right, wrong = weights @ (said_yes & is_yes), weights @ (said_yes & ~is_yes)
        missed = weights @ (said_no & is_yes)
        total = 2 * right + wrong + missed
        found: Array = np.divide(2 * right, total, out=np.zeros(len(total)), where=total > 0)
        return found

    return statistic
