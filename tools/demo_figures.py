"""What the demonstration claims, as numbers: shares and differences with 95% intervals, and the harm of thinking."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.96


def wilson(right: int, number: int) -> tuple[float, float]:
    """Of the share `right` / `number`: Wilson's score interval. (0, 1) where there is nothing to share."""
    if number == 0:
        return 0.0, 1.0
    share = right / number
    middle = (share + Z * Z / (2 * number)) / (1 + Z * Z / number)
    half = Z * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number**2)) / (1 + Z * Z / number)
    return middle - half, middle + half


def gain(better: Sequence[bool], worse: Sequence[bool]) -> tuple[float, float, float]:
    """(difference in points, low, high) of two ways on the same documents, in order.

    The interval is Wald's for paired shares with half a document added to each of the four cells (Agresti and Min
    2005), so that it has a width where the two never differ.
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
    """What the small model's thinking did to the documents that were transferred."""

    spoilt: int
    known: int
    """Those that the large model's short answer had right; `spoilt` of them were wrong after the transfer."""
    rescued: int
    unknown: int
    """Those that it had wrong; `rescued` of them were right after the transfer."""


def harm(transferred: Sequence[bool], right: Sequence[bool], short_right: Sequence[bool]) -> Harm:
    """Of each document: whether it left at `transfer`, whether its answer is right, and whether large S had it."""
    pairs = [(a, s) for t, a, s in zip(transferred, right, short_right, strict=True) if t]
    known, unknown = [a for a, s in pairs if s], [a for a, s in pairs if not s]
    return Harm(known.count(False), len(known), unknown.count(True), len(unknown))
