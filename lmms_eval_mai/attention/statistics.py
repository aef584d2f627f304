"""Means with 95% intervals over documents, and paired tests between two methods on the same documents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval. The interval is nan if one document is not enough to estimate it."""

    mean: float
    low: float
    high: float
    documents: int


@dataclass(frozen=True)
class Band:
    """Means with their 95% intervals. All arrays have the shape of one document's values."""

    mean: Array
    low: Array
    high: Array
    documents: int


@dataclass(frozen=True)
class PairedTest:
    """The exact two-sided sign test of two methods on the same documents. Where all scores are 0 or 1, it is the exact
    McNemar test."""

    better: int
    """Documents on which the first method has the higher score."""
    worse: int
    p: float
    """Probability of a difference at least as large, if neither method were better."""


def band(values: Sequence[Any]) -> Band:
    """Return the mean over documents with the interval of Student's t distribution.

    `values`: one array or number per document, all of the same shape. At least one.
    """
    from scipy.stats import t

    stacked = np.asarray(values, dtype=np.float64)
    count = len(stacked)
    mean = stacked.mean(axis=0)
    if count < 2:
        half = np.full_like(mean, math.nan)
    else:
        half = t.ppf((1 + CONFIDENCE) / 2, count - 1) * stacked.std(axis=0, ddof=1) / math.sqrt(count)
    return Band(mean, mean - half, mean + half, count)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least one number, with the interval of Student's t distribution."""
    found = band(values)
    return Interval(float(found.mean), float(found.low), float(found.high), found.documents)


def score_interval(scores: Sequence[float]) -> Interval:
    """Return the mean score: with Wilson's interval if all scores are 0 or 1, else with that of Student's t
    distribution."""
    if not all(score in (0, 1) for score in scores):
        return mean_interval(scores)
    return share_interval(int(sum(scores)), len(scores))


def share_interval(part: int, count: int) -> Interval:
    """Return a share with Wilson's interval, which is valid for small counts and near 0 and 1 too."""
    from scipy.stats import norm

    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    share = part / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    # Rounding may put the end of an interval at a hair's breadth from 0, 1 or the share itself.
    return Interval(share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share), count)


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Compare the scores of two methods on the same documents, in the same order."""
    from scipy.stats import binomtest

    better = sum(a > b for a, b in zip(first, second, strict=True))
    worse = sum(a < b for a, b in zip(first, second, strict=True))
    p = float(binomtest(better, better + worse).pvalue) if better + worse else 1.0
    return PairedTest(better, worse, p)


def holm(p: Sequence[float]) -> list[float]:
    """Return the p values corrected for their number by Holm's method, in the same order."""
    found = [0.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        found[index] = largest
    return found
