"""Scores, differences and costs of samples, with their intervals. Documents that share an image form a cluster."""

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.intervals import Interval, Statistic
from lmms_eval_mai.analysis.report import Estimate

Clusters: TypeAlias = pd.Series
"""Document -> the number of its cluster."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods on the same documents."""

    difference: Estimate
    """First minus second, in points."""
    only_first: int | None
    """Documents that only the first method has right. None: scores are not just right or wrong."""
    only_second: int | None
    p: float
    """Of the difference: `intervals.swap_test`."""


def score(samples: pd.DataFrame, benchmark: str, clusters: Clusters | None) -> Estimate | None:
    """Return the score of documents in percent: F1 on POPE, else the mean score. None if there are no documents."""
    return None if samples.empty else estimate(_interval(*_parts(samples, benchmark), clusters))


def mean(values: pd.Series, clusters: Clusters | None = None) -> Estimate | None:
    """Return the mean of a number of each document. None if a number is missing, or all."""
    if values.empty or values.isna().any():
        return None
    numbers = cluster_of(values.index, clusters)
    if numbers is None:
        return estimate(intervals.mean(values.to_numpy()), 1)
    parts = np.column_stack([values, np.ones(len(values))])
    return estimate(intervals.bootstrap(parts, intervals.ratio, numbers), 1)


def compare(first: pd.DataFrame, second: pd.DataFrame, benchmark: str, clusters: Clusters | None) -> Comparison | None:
    """Compare two methods on the same documents. None if there are none."""
    if first.empty:
        return None
    for column, empty in (("gold", None), ("group", math.nan)):  # labels or rotations that one of them lacks
        if not (first[column].notna().all() and second[column].notna().all()):
            first, second = first.assign(**{column: empty}), second.assign(**{column: empty})
    (a, statistic), (b, _) = _parts(first, benchmark), _parts(second, benchmark)
    numbers = cluster_of(a.index, clusters)
    x, y = a.to_numpy(), b.loc[a.index].to_numpy()
    of_first, of_second = units(first, first.score), units(second, second.score)
    better = worse = None
    if intervals.is_right_or_wrong(of_first) and intervals.is_right_or_wrong(of_second):
        of_second = of_second.loc[of_first.index]
        better, worse = int((of_first > of_second).sum()), int((of_first < of_second).sum())
    if statistic is intervals.ratio and better is not None and worse is not None and numbers is None:
        interval = intervals.paired_share_difference(better, worse, len(x))
    else:
        interval = difference(np.hstack([x, y]), intervals.difference(statistic), numbers)
    return Comparison(estimate(interval), better, worse, intervals.swap_test(x, y, statistic, numbers))


def difference(parts: npt.NDArray[Any], statistic: Statistic, numbers: npt.NDArray[Any] | None) -> Interval:
    """Return a difference of two shares or scores with its interval. Where no resample differs, more documents might:
    then the interval has the width of that of two methods that never differ."""
    interval = intervals.bootstrap(parts, statistic, numbers)
    if interval.low < interval.high or math.isnan(interval.low):
        return interval
    same = intervals.paired_share_difference(0, 0, len(parts if numbers is None else np.unique(numbers)))
    low, high = max(interval.value + same.low, -1.0), min(interval.value + same.high, 1.0)
    return replace(interval, low=low, high=high)


def plain(scores: pd.Series) -> pd.DataFrame:
    """Return samples without labels and rotations: each answer counts by itself."""
    return pd.DataFrame({"score": scores.astype(float), "group": math.nan, "is_main": True, "gold": None})


def units(samples: pd.DataFrame, scores: Any) -> Any:
    """Return the scores of documents, a series or a frame. MMBench: of each question, whose score is that of its worst
    rotation; questions without their original order are left out, as lmms-eval does."""
    scores = scores.fillna(0.0)
    return scores.groupby(samples.group).transform("min")[samples.is_main] if samples.group.notna().all() else scores


def _parts(samples: pd.DataFrame, benchmark: str) -> tuple[pd.DataFrame, Statistic]:
    """Return the numbers of each document that a score adds up, and the score as a function of their sums."""
    if benchmark == "pope" and samples.gold.notna().all():
        yes, no = samples.predicted == "yes", samples.predicted == "no"
        right = samples.gold == "yes"
        # An answer that is neither yes nor no is in neither the precision nor the recall, as lmms-eval computes F1.
        parts = pd.DataFrame({"right": yes & right, "wrong": yes & ~right, "missed": no & right}).astype(float)
        return parts, intervals.f1
    return pd.DataFrame({"score": units(samples, samples.score), "number": 1.0}), intervals.ratio


def _interval(parts: pd.DataFrame, statistic: Statistic, clusters: Clusters | None) -> Interval:
    numbers = cluster_of(parts.index, clusters)
    values = parts.to_numpy()
    if statistic is intervals.ratio and intervals.is_right_or_wrong(values[:, 0]):
        if numbers is None:
            return intervals.share(int(values[:, 0].sum()), len(values))
        if len(np.unique(values[:, 0])) == 1:  # no resample differs, but more clusters might
            number = len(np.unique(numbers))
            return replace(intervals.share(int(values[0, 0]) * number, number), n=len(values))
    return intervals.bootstrap(values, statistic, numbers)


def cluster_of(documents: pd.Index, clusters: Clusters | None) -> npt.NDArray[Any] | None:
    """Return the cluster of each document. None if each document is a cluster."""
    if clusters is None:
        return None
    numbers = clusters.loc[documents].to_numpy()
    return None if len(np.unique(numbers)) == len(numbers) else numbers


def estimate(interval: Interval, factor: float = 100) -> Estimate:
    """Return an interval as an estimate, times a factor: in percent if it is that of a share or of a score."""
    low, high = (None if math.isnan(end) else factor * end for end in (interval.low, interval.high))
    return Estimate(factor * interval.value, interval.n, low, high)
