"""The distribution of attention over the tokens of a thinking: Figures 3 to 5 and Table 16.

Weights are attention probabilities, softmax over the whole context, at the last token of the prompt. Their arrays have
the tokens of the thinking in the last dimension, for example (layers, heads, tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmms_eval_mai.statistics import Array

ROUNDING = 1e-9
"""A sum of normalised weights this close to delta has reached it. The sum depends on the order of its terms."""


def total_weight(weights: Any) -> Array:
    """Return the attention on all tokens of the thinking (Fig. 3a and 4), between 0 and 1."""
    return np.asarray(np.asarray(weights, dtype=np.float64).sum(axis=-1))


def kept_counts(weights: Any, delta: float) -> Array:
    """Return how many of the heaviest tokens carry at least the share `delta` of the weight. At least one token.

    If all weights are 0, all tokens are needed.
    """
    heaviest_first = -np.sort(-np.asarray(weights, dtype=np.float64), axis=-1)
    totals = heaviest_first.sum(axis=-1, keepdims=True)
    carried = np.divide(np.cumsum(heaviest_first, axis=-1), totals, out=np.zeros_like(heaviest_first), where=totals > 0)
    tokens = heaviest_first.shape[-1]
    too_few = (carried < delta - ROUNDING).sum(axis=-1)
    return np.asarray(np.where(delta >= 1, tokens, np.minimum(too_few + 1, tokens)))


def kept_share(weights: Any, delta: float) -> Array:
    """Return the share of the tokens that carry at least the share `delta` of the weight (Fig. 3b and 5)."""
    return kept_counts(weights, delta) / np.shape(weights)[-1]


@dataclass(frozen=True)
class HeavyToken:
    """A token text in Table 16."""

    text: str
    share: float
    """Its share of the weight of the thinking. Over several documents: the mean, with 0 where it does not occur."""
    documents: int
    """Documents whose thinking has this token."""


def heaviest_tokens(tokens: Sequence[str], weights: Sequence[float], count: int) -> list[HeavyToken]:
    """Return the heaviest tokens of one thinking, each occurrence for itself, as the paper's Table 16 does. The earlier
    one of two equal weights comes first."""
    total = sum(weights) or 1.0
    order = sorted(range(len(tokens)), key=lambda index: (-weights[index], index))
    return [HeavyToken(tokens[index], weights[index] / total, 1) for index in order[:count]]


def heaviest_texts(documents: Sequence[tuple[Sequence[str], Sequence[float]]], count: int) -> list[HeavyToken]:
    """Return the token texts with the largest mean share over documents.

    `documents`: the tokens and the weights of each thinking. All occurrences of a text in a thinking count together.
    """
    shares: dict[str, float] = {}
    occurs: dict[str, int] = {}
    for tokens, weights in documents:
        total = sum(weights) or 1.0
        for text, weight in zip(tokens, weights, strict=True):
            shares[text] = shares.get(text, 0.0) + weight / total
        for text in set(tokens):
            occurs[text] = occurs.get(text, 0) + 1
    order = sorted(shares, key=lambda text: (-shares[text], text))
    return [HeavyToken(text, shares[text] / len(documents), occurs[text]) for text in order[:count]]
