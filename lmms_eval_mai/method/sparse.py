"""Select() of Eq. 12: the tokens of the thinking that are transferred with `transfer=sparse` (Sections 4.2 and 5.3).

Pure functions of tokens and their attention weights. experiments/attention/README.md lists what the paper leaves open.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sparse:
    """How the transferred tokens are selected."""

    delta: float = 0.8
    """Share of the weight of all thinking tokens that the kept tokens carry (delta of Corollary 1)."""
    layer: int = 12
    """The decoder layer whose attention gives the weights, numbered from 1."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept tokens of one thinking."""

    positions: tuple[int, ...]
    """Their positions among the scored tokens, the heaviest first."""
    scored_tokens: int
    share: float
    """Share of the weight of all scored tokens that the kept tokens carry."""
    text: str
    """The kept tokens as text (R'_think^s)."""
    layer: int | None = None
    """The layer whose attention gave the weights."""
    transferred_tokens: int | None = None
    """Tokens of the text, counted by the large model's tokenizer. None: not known."""

    @property
    def kept_tokens(self) -> int:
        return len(self.positions)


def select(tokens: Sequence[str], weights: Sequence[float], sparse: Sparse) -> Selection:
    """Select the key tokens of a thinking (Eq. 12, Section 5.3): the fewest heaviest tokens that carry the share
    `delta` of the sum of all weights, in the order of the thinking. Of two equal weights, the earlier token counts
    first. The whole text is kept if `delta` is 1 or all weights are 0.

    `weights`: one number per token, not negative; they need not add up to 1. Raises `ValueError` for other weights.
    """
    if len(weights) != len(tokens):
        raise ValueError(f"there are {len(weights)} attention weights for {len(tokens)} tokens")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("an attention weight is negative, infinite or not a number")
    ranked = sorted(range(len(tokens)), key=lambda position: -weights[position])
    total = math.fsum(weights)
    if sparse.delta == 1 or total == 0:
        return Selection(tuple(ranked), len(ranked), 1.0, "".join(tokens))

    def share(count: int) -> float:
        return math.fsum(weights[position] for position in ranked[:count]) / total

    kept = ranked[: bisect.bisect_left(range(len(ranked) + 1), sparse.delta, key=share)]
    return Selection(tuple(kept), len(ranked), share(len(kept)), "".join(tokens[position] for position in sorted(kept)))
