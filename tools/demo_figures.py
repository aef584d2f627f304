"""Statistics of the demo: shares and differences with 95% intervals, and the harm of transferred thinking."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmms_eval_mai import statistics

DIFFERENCES = (
    ("small R", "small S"),
    ("large S", "small R"),
    ("large R", "large S"),
    ("Full RT", "large S"),
    ("Full RT", "large R"),
    ("MAI", "large S"),
    ("MAI", "Full RT"),
)
"""Pairs of methods whose accuracies are compared: that of the first minus that of the second."""


def wilson(right: int, number: int) -> tuple[float, float]:
    """Return Wilson's score interval of the share `right` / `number`. (0, 1) if `number` is 0."""
    if number == 0:
        return 0.0, 1.0
    found = statistics.share(right, number)
    return found.low, found.high


def gain(better: Sequence[bool], worse: Sequence[bool]) -> tuple[float, float, float]:
    """Return (difference in points, low, high) of two methods on the same documents, in the same order."""
    test = statistics.paired_test(better, worse)
    found = statistics.paired_share_difference(test.better, test.worse, len(better))
    return 100 * found.value, 100 * found.low, 100 * found.high


@dataclass(frozen=True)
class Harm:
    """The effect of the small model's thinking on the transferred documents."""

    broken: int
    """Documents that were right before the transfer and wrong after it."""
    was_right: int
    """Transferred documents whose short answer of the large model is right."""
    rescued: int
    """Documents that were wrong before the transfer and right after it."""
    was_wrong: int
    """Transferred documents whose short answer of the large model is wrong."""


def harm(transferred: Sequence[bool], right: Sequence[bool], short_right: Sequence[bool]) -> Harm:
    """Count harm. Arguments per document: whether its exit is `transfer`, whether its answer is right, and whether the
    large model's short answer is right."""
    pairs = [(a, s) for t, a, s in zip(transferred, right, short_right, strict=True) if t]
    was_right, was_wrong = [a for a, s in pairs if s], [a for a, s in pairs if not s]
    return Harm(was_right.count(False), len(was_right), was_wrong.count(True), len(was_wrong))
