"""Chooses the threshold of a method that asks how sure a model is by documents, with a bound on what it loses.

Learn then Test (Angelopoulos et al., arXiv 2110.01052) with a fixed sequence: the thresholds are tested one after
another, from the safest to the cheapest, until one test fails. The last one before it is chosen. The sequence does not
depend on the documents, so no correction for its length is needed. The tests are in `intervals`: an exact one for
answers that are right or wrong, with one question about each image, and bets for all others.

What is promised: with the given confidence, the expected loss of the chosen threshold on other images of the same kinds
in the same shares is at most `max_loss`. The loss of an image is the mean over the questions about it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.calibrate.losses import THRESHOLDS, Losses, Promise
from lmms_eval_mai.analysis.intervals import Array, Estimate
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs import metrics


@dataclass(frozen=True)
class Choice:
    """The threshold that some documents choose."""

    losses: Losses
    index: int | None
    """The index of the threshold in `THRESHOLDS`. None: no threshold keeps the promise."""

    @property
    def benchmark(self) -> str:
        return self.losses.run.benchmark

    @property
    def threshold(self) -> float | None:
        return None if self.index is None else THRESHOLDS[self.index]

    @property
    def loss(self) -> Estimate:
        """The loss at the threshold, or at the safest one, in points."""
        values = self.losses.values[self.index or 0]
        if self.losses.is_exact:
            counts = int((values > 0).sum()), int((values < 0).sum())
            return intervals.paired_share_difference(*counts, len(values)).percent()
        parts = np.column_stack([values, np.ones(len(values))])
        return metrics.difference_interval(parts, intervals.ratio, None).percent()

    @property
    def band(self) -> tuple[float, float, float]:
        """The share of the documents that finish at the first check, and the ends of the band that holds at all
        thresholds at once, with a confidence of 95% (Dvoretzky, Kiefer and Wolfowitz)."""
        half = math.sqrt(math.log(2 / (1 - intervals.LEVEL)) / (2 * self.losses.values.shape[1]))
        share = float(self.losses.first_check[self.index or 0])
        return share, max(share - half, 0), min(share + half, 1)

    @property
    def exits(self) -> Estimate:
        """The documents that finish at the first check, in percent."""
        share, low, high = self.band
        return Estimate(100 * share, self.losses.run.documents, 100 * low, 100 * high)

    @property
    def tokens(self) -> Estimate:
        """Output tokens for one document, and those at the ends of the band of exits."""
        value, later, (share, low, high) = self.losses.tokens[self.index or 0], self.losses.later_tokens, self.band
        return Estimate(value, self.losses.run.documents, value - (high - share) * later, value + (share - low) * later)


def accepts(losses: Array, is_exact: bool, promise: Promise) -> bool:
    """Return whether these losses, one for each image, show that the expected loss is at most `max_loss`."""
    level = 1 - promise.confidence
    if losses.mean() > promise.max_loss:  # bets may have been won before the losses came
        return False
    if is_exact:
        worse, better = int((losses > 0).sum()), int((losses < 0).sum())
        return intervals.paired_loss_p_value(worse, better, len(losses), promise.max_loss) <= level
    return intervals.betting_p_value(losses, promise.max_loss) <= level


def threshold_index(values: Array, is_exact: bool, promise: Promise) -> int | None:
    """Return the index of the last threshold before a test fails. None: the first one fails. `values`: threshold x
    image."""
    accepted = itertools.takewhile(lambda losses: accepts(losses, is_exact, promise), values)
    number = sum(1 for _ in accepted)
    return number - 1 if number else None


def points(value: float) -> str:
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def promised(promise: Promise, choices: Sequence[Choice]) -> str:
    """Return what the thresholds promise, as a sentence or two."""
    several = any(choice.losses.values.shape[1] < choice.losses.run.documents for choice in choices)
    unit = " per image (the mean over the questions about it)" if several else ""
    share, baseline = 100 * promise.max_loss, promise.baseline.name
    bound = f"score{unit} is at most {points(share)} below that of {baseline}"
    if promise.loss == "answers":
        bound = f"share of answers{unit} that differ from those of {baseline} is at most {share:g}%"
    is_pope = any(choice.benchmark == "pope" for choice in choices)
    return (
        f"With a confidence of {100 * promise.confidence:g}%, the expected {bound} on other documents of the same "
        f"kinds in the same shares. This holds for each threshold by itself, for this pair of models, and not for the "
        f"documents that chose it.{' On POPE, the score is the accuracy, not F1.' * is_pope}"
    )


def refusal(choice: Choice, promise: Promise) -> str | None:
    """Return why no threshold keeps the promise. None: one does."""
    if choice.index is not None:
        return None
    documents, images = choice.losses.run.documents, choice.losses.values.shape[1]
    shown = f"{documents:,} documents" + (f" about {images:,} images" if images < documents else "")
    return (
        f"{benchmark_name(choice.benchmark)}: {shown} cannot promise a loss of at most "
        f"{points(100 * promise.max_loss)} with a confidence of {100 * promise.confidence:g}%. The safest threshold "
        f"loses {choice.loss.value:.2f} points here. The method, the loss and the number of documents must be decided "
        "before: each further look at these documents may promise falsely. Calibrate with other documents. To look N "
        "times, decide so before the first look, and give --confidence 1 - (1 - P)/N each time."
    )


def choice_table(choices: Sequence[Choice], promise: Promise) -> Iterator[Table]:
    """Yield the thresholds with their loss and their cost on the documents that chose them."""
    lost = "differs from" if promise.loss == "answers" else "loss against"
    columns: list[Column[Choice]] = [
        Column("benchmark", "text", 0, lambda row: benchmark_name(row.benchmark)),
        Column("documents", "count", 0, lambda row: row.losses.run.documents),
        Column("images", "count", 0, lambda row: row.losses.values.shape[1]),
        Column("min_confidence", "text", 0, lambda row: None if row.threshold is None else repr(row.threshold)),
        Column(f"{lost} {promise.baseline.name}, points", "percent", 2, lambda row: row.loss),
        Column("first check, %", "percent", 1, lambda row: row.exits),
        Column("output tokens", "number", 1, lambda row: row.tokens),
        Column("large R minus Full RT, points", "percent", 2, lambda row: row.losses.distance),
    ]
    notes = [
        "The loss has its paired 95% interval. The exits have the 95% band that holds for all thresholds at once "
        "(DKW), and the output tokens are those at its ends."
    ]
    if any(choice.index is None for choice in choices):
        notes.append("Without a threshold, the row is that of the safest one.")
    return table("calibration", "The cheapest thresholds that keep the promise", columns, choices, notes)
