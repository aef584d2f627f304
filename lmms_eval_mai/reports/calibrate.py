"""Chooses the threshold of `verify=confidence` or `verify=both` by documents, with a bound on what it loses.

Learn then Test (Angelopoulos et al., arXiv 2110.01052) with a fixed sequence: the thresholds are tested one after
another, from the safest to the cheapest, until one test fails. The last one before it is chosen. Each test is
`statistics.loss_p_value`, which is valid for any number of documents. The sequence does not depend on the documents, so
no correction for its length is needed. What is promised: with the given confidence, the mean loss of the chosen
threshold on other documents of the same kind, with as many documents about one image, is at most `max_loss`. That of
all benchmarks together is promised for their mixture only, with these shares of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lmms_eval_mai import statistics
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import Verify
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Of, Table, table
from lmms_eval_mai.reports.rules import Rule, decide, has_rules, known_answers
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.statistics import Array

THRESHOLDS = (1.0, 0.999, 0.998, 0.995, *(percent / 100 for percent in range(99, 0, -1)))
"""The thresholds, the safest first."""
POOLED = "all benchmarks"


@dataclass(frozen=True)
class Losses:
    """What the cascade loses on some documents at each threshold."""

    names: tuple[str, ...]
    """The benchmarks of the documents."""
    values: dict[float, Array]
    """Threshold -> the score of the baseline minus that of the cascade, from -1 to 1, for each document."""
    clusters: npt.NDArray[Any]
    """The cluster of each document: documents about one image are not independent of each other."""
    first_check: dict[float, float]
    """Threshold -> the share of the documents that finish at the first check, in percent."""
    tokens: dict[float, float]
    """Threshold -> output tokens of both models for one document."""


@dataclass(frozen=True)
class Choice:
    """The threshold that some documents choose."""

    losses: Losses
    threshold: float | None
    """None: no threshold keeps the promise."""
    needed: int | None
    """About how many documents like these are needed for the safest threshold. None: it loses too much, or almost."""

    @property
    def name(self) -> str:
        """The benchmark, or `POOLED`."""
        return self.losses.names[0] if len(self.losses.names) == 1 else POOLED

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.losses.clusters)

    @property
    def shown(self) -> float:
        """The chosen threshold, or the safest one."""
        return THRESHOLDS[0] if self.threshold is None else self.threshold


def choices(runs: Runs, verify: Verify, against: str, max_loss: float, confidence: float) -> list[Choice]:
    """Return the choice of each benchmark, and that of all together if there are several.

    `against`: `full-rt` or `large-r`. `max_loss`: a share, such as 0.01 for one point. Raises `ArgumentError` if no
    benchmark has the runs.
    """
    found: list[Losses] = []
    missing: list[str] = []
    pairs: set[tuple[str, str]] = set()
    for run in runs.first_checks():
        baseline = runs.full_rt(run) if against == "full-rt" else runs.large_r(run)
        losses = None
        if baseline is not None and has_rules(run):
            losses = losses_of(runs, run, baseline, verify)
        if losses is None:
            missing.append(runs.name(run.method))
        elif losses.names[0] in {one.names[0] for one in found}:
            raise ArgumentError(
                f"There are several cascades on {benchmark_name(run.benchmark)}. Give the folders of one cascade and "
                "of Full RT with the same pair of models."
            )
        else:
            found.append(losses)
            pairs.add((run.method.small, run.method.model))
    if len(pairs) > 1:
        shown = "; ".join(f"{small} and {large}" for small, large in sorted(pairs))
        raise ArgumentError(f"The cascades have different models ({shown}). Give the folders of one pair.")
    if not found:
        other = "Full RT (mode=transfer)" if against == "full-rt" else "large R (mode=large with the task's _r)"
        named = f" of {', '.join(missing)}" if missing else ""
        raise ArgumentError(
            f"No documents{named} have all the calls: give the folders of one cascade (mode=cascade, "
            f"verify=agreement){' and' if against == 'full-rt' else ','} of Full RT (mode=transfer)"
            f"{'' if against == 'full-rt' else ' and of ' + other} on the same documents, with the same "
            "pair, by an engine that reports log-probabilities, and with --log_samples. The task must be one of this "
            "package, or a copy with other documents, with thinking in one stage (such as chartqa_s)."
        )
    return [choose(one, max_loss, confidence) for one in (*found, *([pooled(found)] if len(found) > 1 else []))]


def losses_of(runs: Runs, run: Run, baseline: Run, verify: Verify) -> Losses | None:
    """Return what a cascade loses against a baseline on their documents. None: a call is missing."""
    known = known_answers(runs, run)
    scores = baseline.samples[baseline.samples.repeat == 0].score.reindex(known.index)
    decided = {value: decide(known, Rule(verify, value, run.rules), run.benchmark) for value in THRESHOLDS}
    documents = {value: one for value, one in decided.items() if one is not None}
    if len(documents) < len(THRESHOLDS) or scores.isna().any() or known.probability.isna().all():
        return None
    samples = run.samples[run.samples.repeat == 0]
    units = {value: metrics.units(samples.assign(score=one.score)) for value, one in documents.items()}
    theirs = metrics.units(samples.assign(score=scores))
    places = metrics.places_of(theirs.index, runs.clusters(run))
    return Losses(
        (run.benchmark,),
        {value: (theirs - one).to_numpy() for value, one in units.items()},
        np.arange(len(theirs)) if places is None else places,
        {value: 100 * float(one.exit.isin(("confident", "agree_short")).mean()) for value, one in documents.items()},
        {value: float(one.tokens.mean()) for value, one in documents.items()},
    )


def choose(losses: Losses, max_loss: float, confidence: float) -> Choice:
    """Return the cheapest threshold whose mean loss is at most `max_loss` (a share), with this confidence."""
    chosen = None
    for threshold in THRESHOLDS:
        if statistics.loss_p_value(losses.values[threshold], max_loss, losses.clusters) > 1 - confidence:
            break
        chosen = threshold
    needed = statistics.documents_needed(losses.values[THRESHOLDS[0]], max_loss, 1 - confidence, losses.clusters)
    return Choice(losses, chosen, needed)


def pooled(parts: Sequence[Losses]) -> Losses:
    """Return the losses of several benchmarks together. Each document counts the same."""
    first, clusters = 0, []
    for part in parts:
        _, places = np.unique(part.clusters, return_inverse=True)
        clusters.append(places + first)
        first += int(places.max()) + 1
    weights = [len(part.clusters) for part in parts]

    def mean(of: Sequence[dict[float, float]]) -> dict[float, float]:
        return {value: float(np.average([one[value] for one in of], weights=weights)) for value in THRESHOLDS}

    return Losses(
        tuple(part.names[0] for part in parts),
        {value: np.concatenate([part.values[value] for part in parts]) for value in THRESHOLDS},
        np.concatenate(clusters),
        mean([part.first_check for part in parts]),
        mean([part.tokens for part in parts]),
    )


def points(value: float) -> str:
    """Return a number of points in words."""
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def refusal(choice: Choice, max_loss: float, confidence: float) -> str | None:
    """Return why no threshold keeps the promise, as a sentence. None: one does."""
    if choice.threshold is not None:
        return None
    name = POOLED if choice.name == POOLED else benchmark_name(choice.name)
    promise = f"{points(100 * max_loss)} with a confidence of {confidence:.0%}"
    lost = 100 * float(np.mean(choice.losses.values[choice.shown]))
    if choice.needed is None:
        return (
            f"{name}: these {choice.documents:,} documents cannot promise a loss of at most {promise}. The tests begin "
            f"with min_confidence=1, the safest threshold, which loses {lost:.2f} points here. Allow more with "
            "--max_loss."
        )
    return (
        f"{name}: {choice.documents:,} documents cannot promise a loss of at most {promise}; about {choice.needed:,} "
        "like these may. Use more documents, or allow more with --max_loss."
    )


def choice_table(found: Sequence[Choice], against: str) -> Iterator[Table]:
    """Yield the thresholds with their loss and their cost on the documents that chose them."""

    def loss(choice: Choice) -> Estimate:
        parts = np.column_stack([choice.losses.values[choice.shown], np.ones(choice.documents)])
        return metrics.estimate(metrics.difference(parts, statistics.ratio, choice.losses.clusters))

    columns: list[Of[Choice]] = [
        Of("benchmark", "text", 0, lambda row: row.name if row.name == POOLED else benchmark_name(row.name)),
        Of("documents", "count", 0, lambda row: row.documents),
        Of("min_confidence", "number", 3, lambda row: row.threshold),
        Of(f"loss against {against}, points", "percent", 2, loss),
        Of("first check, %", "percent", 1, lambda row: row.losses.first_check[row.shown]),
        Of("output tokens", "number", 1, lambda row: row.losses.tokens[row.shown]),
    ]
    return table(
        "calibration",
        "The cheapest thresholds that keep the promise",
        columns,
        found,
        ("Without a threshold, the row is that of min_confidence=1.",),
    )
