"""Estimates from documents: the score of a run with its interval, and the comparison of two runs on the same documents.

POPE's score is F1, MMBench's is by question with all its rotations, and all others are the mean score of the documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.reports import statistics
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import Document, Run
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.reports.statistics import Array, Interval

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

Statistic = Callable[[npt.NDArray[Any], Array], Array]


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
        return Estimate(value, run.number, 100 * found.low, 100 * found.high, 100 * found.standard_error)
    return Estimate(value, run.number)


def score(documents: Sequence[Document], benchmark: str) -> Estimate | None:
    """Return the score of documents in percent: F1 on POPE, else the mean score. None if there are no documents."""
    rows, statistic = _rows(documents, benchmark)
    if not len(rows):
        return None
    return percent(_interval(rows, statistic), len(rows))


def accuracy(documents: Sequence[Document]) -> Estimate | None:
    """Return the mean score of documents in percent, on POPE too. None if there are no documents."""
    rows = np.array([[document.score or 0.0] for document in documents])
    return percent(_interval(rows, statistics.column_mean(0)), len(rows)) if len(rows) else None


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

    found = statistics.bootstrap(both, difference)
    one, other = (float(statistic(rows, np.ones((1, len(rows))))[0]) for rows in (a, b))
    x, y = units(first), units(second)
    counts: tuple[int | None, int | None, float | None] = (None, None, None)
    if is_right_or_wrong(x) and is_right_or_wrong(y):
        won, lost = int((x > y).sum()), int((y > x).sum())
        counts = won, lost, statistics.mcnemar(won, lost)
    return Comparison(len(x), 100 * one, 100 * other, percent(found, len(x)), *counts)


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


def is_right_or_wrong(scores: Array) -> bool:
    """Return whether all scores are 0 or 1."""
    return bool(np.isin(scores, (0.0, 1.0)).all())


def percent(interval: Interval, n: int) -> Estimate:
    """Return an estimate in percent from an interval of a share or of a score."""
    return Estimate(100 * interval.value, n, 100 * interval.low, 100 * interval.high, 100 * interval.standard_error)


def share(count: int, number: int, paper: PaperNumber | None = None) -> Estimate | None:
    """Return a share in percent. None if `number` is 0."""
    return with_paper(percent(statistics.share(count, number), number), paper) if number else None


def with_paper(estimate: Estimate | None, paper: PaperNumber | None) -> Estimate | None:
    """Add the paper's number to an estimate."""
    if estimate is None or paper is None:
        return estimate
    return replace(estimate, paper=paper.value, source=paper.source)


def _rows(documents: Sequence[Document], benchmark: str) -> tuple[npt.NDArray[Any], Statistic]:
    """Return one row for each document, and the statistic of rows that is the score."""
    if benchmark == "pope" and documents and all(document.labels for document in documents):
        codes = [[statistics.CODES.get(label, 2) for label in document.labels or ()] for document in documents]
        return np.array(codes), statistics.f1(0, 1)
    return units(documents)[:, None], statistics.column_mean(0)


def _interval(rows: npt.NDArray[Any], statistic: Statistic) -> Interval:
    if rows.shape[1] == 1 and is_right_or_wrong(rows[:, 0]):
        return statistics.share(int(rows.sum()), len(rows))
    return statistics.bootstrap(rows, statistic)
