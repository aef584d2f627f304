"""Corollary 1, checked on numbers: both sides of Eq. 11 for one layer, for each head.

    ||p_l - p_s|| <= ||p'_l - p'_s|| + 4 (1 - delta) c                                        Eq. 11

p is what one head reads from a thinking: the mean of its vectors, weighted with softmax over the tokens of the thinking
alone. p' is the same over the heaviest tokens, those with a share of at least delta. l and s are the thinkings of the
large and of the small model. c is the largest norm of a vector.

The proof takes the kept share as exactly delta. It is S >= delta, and with S the same proof gives a smaller bound:

    ||p_l - p_s|| <= ||p'_l - p'_s|| + 2 (1 - S_l) c + 2 (1 - S_s) c

Two bounds hold without any assumption. p_l and p_s are means of vectors of norm c at most, so their distance is at most
2c, and it is at most ||p_l|| + ||p_s||. Where the right side of Eq. 11 is not smaller, the corollary tells nothing.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lmms_eval_mai.attention.sparsity import kept_counts
from lmms_eval_mai.statistics import Array

Flags = np.ndarray[Any, np.dtype[np.bool_]]

TOLERANCE = 1e-9
"""Rounding, in units of c. Everything is computed in 64 bits."""


@dataclass(frozen=True)
class BoundCheck:
    """Eq. 11 on one document. All arrays have one number per head, or one per layer and head."""

    distance: Array
    """The left side: ||p_l - p_s||."""
    kept_distance: Array
    """||p'_l - p'_s||, over the kept tokens."""
    norm: Array
    """c: the largest norm of the vectors of both thinkings."""
    share_large: Array
    """S_l: the share of the weight on the kept tokens of the large model's thinking."""
    share_small: Array
    """S_s."""
    norms: Array
    """||p_l|| + ||p_s||."""
    delta: float

    @property
    def bound(self) -> Array:
        """Return the right side of Eq. 11."""
        return self.kept_distance + 4 * (1 - self.delta) * self.norm

    @property
    def bound_of_shares(self) -> Array:
        """Return the right side with the shares that were really kept."""
        return self.kept_distance + 2 * (2 - self.share_large - self.share_small) * self.norm

    @property
    def slack(self) -> Array:
        """Return how far the left side of Eq. 11 is below the right side."""
        return self.bound - self.distance

    @property
    def violated(self) -> Flags:
        """Return where Eq. 11 does not hold."""
        return self.distance > self.bound + TOLERANCE * self.norm

    @property
    def violated_with_shares(self) -> Flags:
        """Return where the smaller bound does not hold."""
        return self.distance > self.bound_of_shares + TOLERANCE * self.norm

    @property
    def vacuous(self) -> Flags:
        """Return where the right side of Eq. 11 is at least 2c."""
        return self.bound >= 2 * self.norm

    @property
    def above_norms(self) -> Flags:
        """Return where the right side of Eq. 11 is at least ||p_l|| + ||p_s||, which is at most 2c."""
        return self.bound >= self.norms


def check(large: tuple[Any, Any], small: tuple[Any, Any], delta: float) -> BoundCheck:
    """Check Eq. 11 in each head of one layer.

    `large`, `small`: the weights (heads, tokens) and the vectors (heads, tokens, size) of the large and the small
    model's thinking. The two thinkings may have different numbers of tokens.
    """
    (read_l, kept_l, share_l), (read_s, kept_s, share_s) = (_read(*side, delta) for side in (large, small))
    largest = [np.linalg.norm(np.asarray(vectors, dtype=np.float64), axis=-1).max(-1) for _, vectors in (large, small)]
    return BoundCheck(
        distance=np.linalg.norm(read_l - read_s, axis=-1),
        kept_distance=np.linalg.norm(kept_l - kept_s, axis=-1),
        norm=np.maximum(*largest),
        share_large=share_l,
        share_small=share_s,
        norms=np.linalg.norm(read_l, axis=-1) + np.linalg.norm(read_s, axis=-1),
        delta=delta,
    )


def stack(checks: list[BoundCheck]) -> BoundCheck:
    """Return the checks of all layers as one, with arrays of shape (layers, heads)."""
    names = [field.name for field in fields(BoundCheck) if field.name != "delta"]
    arrays = {name: np.stack([getattr(check, name) for check in checks]) for name in names}
    return BoundCheck(**arrays, delta=checks[0].delta)


def _read(weights: Any, vectors: Any, delta: float) -> tuple[Array, Array, Array]:
    """Return p, p' and the kept share S of each head."""
    weights, vectors = np.asarray(weights, dtype=np.float64), np.asarray(vectors, dtype=np.float64)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    order = np.argsort(-weights, axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(weights.shape[-1]), axis=-1)
    kept = np.where(rank < kept_counts(weights, delta)[..., None], weights, 0.0)
    share = kept.sum(axis=-1)
    read = np.einsum("ht,htd->hd", weights, vectors)
    return read, np.einsum("ht,htd->hd", kept / share[..., None], vectors), share
