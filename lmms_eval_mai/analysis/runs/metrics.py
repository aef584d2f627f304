"""Scores, differences and costs of samples, with their intervals. Documents that share an image form a cluster."""

import functools
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.intervals import Array, Estimate, Statistic

Clusters: TypeAlias = pd.Series
"""Document -> the number of its cluster."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two methods on the same documents."""

    first: Array
    """A row of numbers for each document, of whose sums `statistic` makes the score."""
    second: Array
    statistic: Statistic
    clusters: npt.NDArray[Any] | None
    """The cluster of each document. None: each document is a cluster."""
    only_first: int | None
    """Documents that only the first method has right. None: scores are not just right or wrong."""
    only_second: int | None

    @property
    def size(self) -> int:
        """The number of clusters."""
        return len(self.first) if self.clusters is None else len(np.unique(self.clusters))

    @functools.cached_property
    def difference(self) -> Estimate:
        """First minus second, in points."""
        is_share = self.statistic is intervals.ratio and self.clusters is None
        if is_share and self.only_first is not None and self.only_second is not None:
            return intervals.paired_share_difference(self.only_first, self.only_second, len(self.first)).percent()
        both = np.hstack([self.first, self.second])
        return difference_interval(both, intervals.difference(self.statistic), self.clusters).percent()

    @functools.cached_property
    def p(self) -> float:
        return intervals.swap_test(self.first, self.second, self.statistic, self.clusters)


def score(samples: pd.DataFrame, benchmark: str, clusters: Clusters | None) -> Estimate | None:
    """Return the score of documents in percent: F1 on POPE, else the mean score. None if there are no documents."""
    return None if samples.empty else _interval(*_parts(samples, benchmark), clusters).percent()


def mean(values: pd.Series, clusters: Clusters | None = None) -> Estimate | None:
    """Return the mean of a number of each document. None if a number is missing, or all."""
    if values.empty or values.isna().any():
        return None
    numbers = cluster_of(values.index, clusters)
    if numbers is None:
        return intervals.mean(values.to_numpy())
    parts = np.column_stack([values, np.ones(len(values))])
    return intervals.bootstrap(parts, intervals.ratio, numbers)


def compare(first: pd.DataFrame, second: pd.DataFrame, benchmark: str, clusters: Clusters | None) -> Comparison | None:
    """Compare two methods on the same documents. None if there are none."""
    if first.empty:
        return None
    for column, unknown in (("gold", None), ("group", np.nan)):  # labels or rotations that one of them lacks
        if not (first[column].notna().all() and second[column].notna().all()):
            first, second = first.assign(**{column: unknown}), second.assign(**{column: unknown})
    (parts, statistic), (other_parts, _) = _parts(first, benchmark), _parts(second, benchmark)
    better = worse = None
    scores, others = units(first, first.score), units(second, second.score)
    if intervals.is_right_or_wrong(scores) and intervals.is_right_or_wrong(others):
        others = others.loc[scores.index]
        better, worse = int((scores > others).sum()), int((scores < others).sum())
    both = parts.to_numpy(), other_parts.loc[parts.index].to_numpy()
    return Comparison(*both, statistic, cluster_of(parts.index, clusters), better, worse)


def difference_interval(parts: Array, statistic: Statistic, numbers: npt.NDArray[Any] | None) -> Estimate:
    """Return a difference of two shares or scores with its interval. Where no resample differs, more documents might:
    then the interval has the width of that of two methods that never differ. `numbers`: the cluster of each document.
    """
    found = intervals.bootstrap(parts, statistic, numbers)
    low, high = found.ends
    if found.low is None or low < high:
        return found
    low, high = intervals.paired_share_difference(0, 0, len(parts if numbers is None else np.unique(numbers))).ends
    return replace(found, low=max(found.value + low, -1.0), high=min(found.value + high, 1.0))


def plain(scores: pd.Series) -> pd.DataFrame:
    """Return samples without labels and rotations: each answer counts by itself."""
    return pd.DataFrame({"score": scores.astype(float), "group": np.nan, "is_main": True, "gold": None})


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


def _interval(parts: pd.DataFrame, statistic: Statistic, clusters: Clusters | None) -> Estimate:
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
