"""How well the large model knows when its short answer is right: AUROC, and the reliability of its probabilities."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.cascade_tables import RIGHT
from lmms_eval_mai.reports.evidence import Evidence, of_run
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

LIMITS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Limits of the bins of probabilities."""
Answered = tuple[Run, str, pd.DataFrame]
"""A cascade, which of its answers, and their `probability` and whether they are `right` (1 or 0)."""


def probabilities(evidence: Evidence, run: Run) -> pd.DataFrame:
    """Return the `probability` of the large model's short answers, and whether they are `right` (1 or 0). Answers
    without a probability or a score are left out, and so are repeated ones (`-n`)."""
    scores = evidence.large_short_scores(run)
    found = pd.DataFrame(
        {
            "probability": np.exp(run.samples.answer_logprob),
            "right": (scores >= RIGHT).astype(float).where(scores.notna()),
            "agree": run.samples.agree,
        }
    )
    return found[found.probability.notna() & found.right.notna() & (run.samples.repeat == 0)]


@dataclass(frozen=True, slots=True)
class Bin:
    """The answers with a probability between two limits."""

    low: float
    high: float
    n: int
    probability: float
    """Their mean probability, in percent."""
    right: Estimate
    """How many are right, in percent."""


@functools.lru_cache(1)
def reliability(evidence: Evidence) -> tuple[tuple[Run, tuple[Bin, ...]], ...]:
    """Return the bins with answers of each cascade. The table and the figure need the same."""
    runs = ((run, probabilities(evidence, run)) for run in evidence.first_checks())
    return tuple((run, tuple(_bins(evidence, run, found))) for run, found in runs if len(found))


def _bins(evidence: Evidence, run: Run, found: pd.DataFrame) -> Iterator[Bin]:
    for low, high in itertools.pairwise(LIMITS):
        part = found[(found.probability >= low) & ((found.probability < high) | (high == LIMITS[-1]))]
        right = evidence.share(run, part.right)  # None: the bin has no answers
        if right is not None:
            yield Bin(low, high, len(part), 100 * float(part.probability.mean()), right)


def probability_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield how well the probability of the large model's short answer tells right from wrong, and its reliability."""
    runs = [(run, found) for run in evidence.first_checks() if len(found := probabilities(evidence, run))]

    def area(row: Answered) -> Estimate | None:
        run, _, found = row
        places = metrics.places_of(found.index, evidence.clusters(run))
        area = statistics.auroc(found.probability.to_numpy(), found.right.to_numpy(), places)
        return None if area is None else metrics.estimate(area)

    columns: list[Of[Answered]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("answers", "text", 0, lambda row: row[1]),
        Of("n", "count", 0, lambda row: len(row[2])),
        Of("right, %", "percent", 1, lambda row: evidence.share(row[0], row[2].right)),
        Of("mean probability, %", "percent", 1, lambda row: 100 * float(row[2].probability.mean())),
        Of("AUROC, %", "percent", 1, area),
    ]
    rows: list[Answered] = [(run, "all", found) for run, found in runs]
    agreed = [(run, found[found.agree.eq(True)]) for run, found in runs]
    rows += [(run, "both short answers agree", found) for run, found in agreed if len(found)]
    yield from table(
        "probability",
        "The probability of the large model's short answer",
        columns,
        rows,
        (
            "AUROC: how often a right answer has a higher probability than a wrong one, ties count half; 50% is "
            "chance. Right: a score of at least 0.5. verify=confidence needs a high AUROC, and a threshold: calibrate.",
        ),
    )
    of_bin: list[Of[tuple[Run, Bin]]] = [
        *of_run(evidence, lambda row: row[0]),
        Of("probability", "text", 0, lambda row: f"{row[1].low:g} to {row[1].high:g}"),
        Of("n", "count", 0, lambda row: row[1].n),
        Of("mean probability, %", "percent", 1, lambda row: row[1].probability),
        Of("right, %", "percent", 1, lambda row: row[1].right),
    ]
    binned = [(run, one) for run, all_bins in reliability(evidence) for one in all_bins]
    yield from table(
        "reliability",
        "Reliability of the probability: right answers in each bin",
        of_bin,
        binned,
        ("The model is overconfident where fewer answers are right than its mean probability says.",),
    )
