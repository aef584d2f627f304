"""Statistics of the demo: shares and differences with 95% intervals, and the harm of transferred thinking."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.96


def wilson(right: int, number: int) -> tuple[float, float]:
    """Return Wilson's score interval of the share `right` / `number`. (0, 1) if `number` is 0."""
    if number == 0:
        return 0.0, 1.0
    share = right / number
    middle = (share + Z * Z / (2 * number)) / (1 + Z * Z / number)
    half = Z * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number**2)) / (1 + Z * Z / number)
    return middle - half, middle + half


def gain(better: Sequence[bool], worse: Sequence[bool]) -> tuple[float, float, float]:
    """Return (difference in points, low, high) of two methods on the same documents, in the same order.

    The interval is Wald's for paired shares with half a document added to each of the four cells (Agresti and Min
    2005). So it is wider than 0 even if the two methods never differ.
    """
    number = len(better)
    won = sum(a and not b for a, b in zip(better, worse, strict=True))
    lost = sum(b and not a for a, b in zip(better, worse, strict=True))
    middle = (won - lost) / (number + 2)
    variance = (won + lost + 1) - (won - lost) ** 2 / (number + 2)
    half = Z * math.sqrt(variance) / (number + 2)
    return 100 * (won - lost) / number, 100 * (middle - half), 100 * (middle + half)


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
