"""Estimates from documents: the score of a run with its interval, and the comparison of two runs on the same documents.

POPE's score is F1, MMBench's is by question with all its rotations, and all others are the mean score of the documents.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmms_eval_mai import statistics
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import Document, Run
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.statistics import Array, Interval, Statistic, is_right_or_wrong

MAIN_METRIC = {
    "pope": ("pope_f1_score", 100),
    "mmmu_val": ("mmmu_acc", 100),
    "mmbench_en_dev": ("gpt_eval_score", 1),  # lmms-eval's is a percentage
    "chartqa": ("relaxed_overall", 100),
    "infovqa_val": ("anls", 100),
    "realworldqa": ("exact_match", 100),
    "shapes": ("exact_match", 100),
}
"""Benchmark -> the paper's metric, and the factor that makes it a percentage."""
NOT_A_SHARE = ("pope_f1_score", "anls")
CODES = {"yes": 0, "no": 1}
"""Label of POPE -> its number in the rows of `f1`. Every other answer is 2."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two methods on the same documents."""

    n: int
    first: float
    """Score of the first method in percent."""
    second: float
    difference: Estimate
    """First minus second, in points."""
    only_first: int | None
    """Documents that only the first method has right. None: scores are not just right or wrong."""
    only_second: int | None
    p: float | None
    """Exact McNemar test. None: scores are not just right or wrong."""


def main_metric(run: Run) -> tuple[float, bool] | None:
    """Return lmms-eval's total score of a run in percent, and whether it is a share of documents."""
    name, factor = MAIN_METRIC.get(run.benchmark, ("", 100))
    if name in run.metrics:
        return run.metrics[name] * factor, name not in NOT_A_SHARE
    for name in ("exact_match", "acc", "accuracy"):
        if 0 <= run.metrics.get(name, -1) <= 1:
            return 100 * run.metrics[name], True
    return None


def run_score(run: Run) -> Estimate | None:
    """Return the score of a run in percent: that of its documents, else lmms-eval's total. None: it has neither."""
    scored = [document for document in run.documents if document.score is not None]
    if scored and len(scored) == len(run.documents):
        return score(scored, run.benchmark)
    total = main_metric(run)
    if total is None:
        return None
    value, is_share = total
    if is_share and run.number:
        found = statistics.share(round(value / 100 * run.number), run.number)
        return replace(percent(found), value=value)
    return Estimate(value, run.number)


def score(documents: Sequence[Document], benchmark: str) -> Estimate | None:
    """Return the score of documents in percent: F1 on POPE, else the mean score. None if there are no documents."""
    rows, statistic = _rows(documents, benchmark)
    if not len(rows):
        return None
    return percent(_interval(rows, statistic))


def accuracy(documents: Sequence[Document]) -> Estimate | None:
    """Return the mean score of documents in percent, on POPE too. None if there are no documents."""
    rows = np.array([[document.score or 0.0] for document in documents])
    return percent(_interval(rows, statistics.column_mean(0))) if len(rows) else None


def compare(first: Sequence[Document], second: Sequence[Document], benchmark: str) -> Comparison | None:
    """Compare two methods on the same documents, which must be in the same order."""
    first, second = _same_form(first, second)
    (a, statistic), (b, _) = _rows(first, benchmark), _rows(second, benchmark)
    if not len(a):
        return None
    width = a.shape[1]
    both = np.hstack([a, b])

    def difference(rows: npt.NDArray[Any], weights: Array) -> Array:
        return statistic(rows[:, :width], weights) - statistic(rows[:, width:], weights)

    one, other = (float(statistic(rows, np.ones((1, len(rows))))[0]) for rows in (a, b))
    x, y = units(first), units(second)
    if not (is_right_or_wrong(x) and is_right_or_wrong(y)):
        found = statistics.bootstrap(both, difference)
        return Comparison(len(x), 100 * one, 100 * other, percent(found), None, None, None)
    test = statistics.paired_test(x, y)
    if width == 1:
        found = statistics.paired_share_difference(test.better, test.worse, len(x))
    else:
        found = statistics.bootstrap(both, difference)
    return Comparison(len(x), 100 * one, 100 * other, percent(found), test.better, test.worse, test.p)


def units(documents: Sequence[Document]) -> Array:
    """Return the scores of documents. MMBench: of questions, whose score is that of their worst rotation; questions
    without their original order are left out, as lmms-eval does."""
    if documents and all(document.group is not None for document in documents):
        worst: dict[int | None, float] = {}
        for document in documents:
            worst[document.group] = min(worst.get(document.group, 1.0), document.score or 0.0)
        return np.array([worst[document.group] for document in documents if document.is_main])
    return np.array([document.score or 0.0 for document in documents])


def _same_form(first: Sequence[Document], second: Sequence[Document]) -> tuple[Sequence[Document], Sequence[Document]]:
    """Return the documents of two runs without labels or rotations, if one of the runs lacks them."""
    both = (*first, *second)
    if len({document.labels is None for document in both}) > 1:
        first, second = ([replace(document, labels=None) for document in run] for run in (first, second))
    if len({document.group is None for document in both}) > 1:
        first, second = ([replace(document, group=None) for document in run] for run in (first, second))
    return first, second


def estimate(interval: Interval, factor: float = 1) -> Estimate:
    """Return an interval as an estimate, times a factor."""
    found = (interval.low, interval.high, interval.standard_error)
    low, high, error = (None if math.isnan(one) else factor * one for one in found)
    return Estimate(factor * interval.value, interval.n, low, high, error)


def percent(interval: Interval) -> Estimate:
    """Return an estimate in percent from an interval of a share or of a score."""
    return estimate(interval, 100)


def share(count: int, number: int, paper: PaperNumber | None = None) -> Estimate | None:
    """Return a share in percent. None if `number` is 0."""
    return with_paper(percent(statistics.share(count, number)), paper) if number else None


def with_paper(estimate: Estimate | None, paper: PaperNumber | None) -> Estimate | None:
    """Add the paper's number to an estimate."""
    if estimate is None or paper is None:
        return estimate
    return replace(estimate, paper=paper.value, source=paper.source)


def _rows(documents: Sequence[Document], benchmark: str) -> tuple[npt.NDArray[Any], Statistic]:
    """Return one row for each document, and the statistic of rows that is the score."""
    if benchmark == "pope" and documents and all(document.labels for document in documents):
        codes = [[CODES.get(label, 2) for label in document.labels or ()] for document in documents]
        return np.array(codes), f1(0, 1)
    return units(documents)[:, None], statistics.column_mean(0)


def _interval(rows: npt.NDArray[Any], statistic: Statistic) -> Interval:
    if rows.shape[1] == 1 and is_right_or_wrong(rows[:, 0]):
        return statistics.share(int(rows.sum()), len(rows))
    return statistics.bootstrap(rows, statistic)


def f1(prediction: int, gold: int) -> Statistic:
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
