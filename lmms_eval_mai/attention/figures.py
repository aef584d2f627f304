"""Figures 3 to 5 and Table 16: the distribution of attention over the tokens of a thinking.

Weights are attention probabilities, softmax over the whole context, at the last token of the prompt.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lmms_eval_mai.attention.results import Record, means
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.statistics import Array

ROUNDING = 1e-9
"""A sum of normalised weights this close to delta has reached it. The sum depends on the order of its terms."""
TOP = 15
"""Number of tokens in a row of Table 16."""


@dataclass(frozen=True)
class Reading:
    """How the large model reads one thinking."""

    tokens: Sequence[str]
    weights: Array
    """Mean over heads of the attention on each token: (layers, tokens)."""
    total_weight: Array
    """Attention on all tokens (Fig. 4), between 0 and 1: (layers, heads)."""
    token_share: Array
    """Share of the tokens that carries delta of it (Fig. 5): (layers, heads)."""


def reading(tokens: Sequence[str], weights: Any, delta: float) -> Reading:
    """Return how a thinking is read. `weights`: those of all heads, of shape (layers, heads, tokens)."""
    weights = np.asarray(weights, dtype=np.float64)
    return Reading(tokens, weights.mean(axis=1), weights.sum(axis=-1), kept_counts(weights, delta) / len(tokens))


def kept_counts(weights: Any, delta: float) -> Array:
    """Return how many of the heaviest tokens carry at least the share `delta` of the weight. At least one token.

    `weights`: the tokens are the last dimension. If all weights are 0, all tokens are needed.
    """
    heaviest_first = -np.sort(-np.asarray(weights, dtype=np.float64), axis=-1)
    totals = heaviest_first.sum(axis=-1, keepdims=True)
    carried = np.divide(np.cumsum(heaviest_first, axis=-1), totals, out=np.zeros_like(heaviest_first), where=totals > 0)
    tokens = heaviest_first.shape[-1]
    too_few = (carried < delta - ROUNDING).sum(axis=-1)
    return np.asarray(np.where(delta >= 1, tokens, np.minimum(too_few + 1, tokens)))


def tables(documents: Mapping[int, Mapping[Side, Reading]], delta: float) -> dict[str, list[Record]]:
    """Return the rows of the figures and of Table 16, by table. `documents`: at least one, by number; how the thinking
    of each model is read."""
    found: dict[str, list[Record]] = {name: [] for name in ("figure3", "figures4_5", "table16", "table16_document")}
    first = min(documents)
    for side in SIDES:
        readings = [one[side] for one in documents.values()]
        total = np.stack([one.total_weight for one in readings])  # (documents, layers, heads)
        share = np.stack([one.token_share for one in readings])
        for layer in range(total.shape[1]):
            place = {"thinking": side, "layer": layer + 1, "documents": len(readings)}
            of_layer = {"total_weight": total[:, layer], "token_share": share[:, layer]}
            found["figure3"].append(place | means({name: one.mean(axis=-1) for name, one in of_layer.items()}))
            for head in range(total.shape[2]):
                of_head = means({name: one[:, head] for name, one in of_layer.items()})
                found["figures4_5"].append({**place, "head": head + 1, **of_head})
            found["table16"] += _table_16(place, readings, delta)
            example = {**place, "documents": 1, "doc_id": first}
            found["table16_document"] += _table_16(example, [documents[first][side]], delta, by_place=True)
    return found


def _table_16(place: Record, readings: Sequence[Reading], delta: float, by_place: bool = False) -> list[Record]:
    weighted = [(one.tokens, one.weights[place["layer"] - 1].tolist()) for one in readings]
    kept = np.array([kept_counts(weights, delta) for _, weights in weighted])
    place = place | means({"kept_tokens": kept, "token_share": kept / [len(tokens) for tokens, _ in weighted]})
    return [
        {**place, "rank": rank, "token": token, "weight_share": share, "documents_with_token": number}
        for rank, (token, share, number) in enumerate(heaviest(weighted, TOP, by_place), 1)
    ]


def heaviest(
    documents: Sequence[tuple[Sequence[str], Sequence[float]]], count: int, by_place: bool = False
) -> list[tuple[str, float, int]]:
    """Return the tokens with the largest mean share of the weight over documents, with this share and the number of
    documents that have the token. A document without the token counts as 0.

    `documents`: the tokens and the weights of each thinking. `by_place`: each place of a thinking counts for itself, as
    in the paper's Table 16. Otherwise, all places of a text in a thinking count together.
    """
    shares: dict[tuple[int, str], float] = {}
    occurs: Counter[tuple[int, str]] = Counter()
    for tokens, weights in documents:
        total = sum(weights) or 1.0
        keys = [(place if by_place else 0, token) for place, token in enumerate(tokens)]
        for key, weight in zip(keys, weights, strict=True):
            shares[key] = shares.get(key, 0.0) + weight / total
        occurs.update(set(keys))
    order = sorted(shares, key=lambda key: (-shares[key], key))
    return [(key[1], shares[key] / len(documents), occurs[key]) for key in order[:count]]


def text(figure3: Sequence[Record], delta: float) -> str:
    """Return the rows of Figure 3 for the terminal."""
    by_layer = pd.DataFrame(figure3).pivot(index="layer", columns="thinking", values=["total_weight", "token_share"])
    return (
        f"Figure 3, {figure3[0]['documents']:,} documents: the large model's attention on all tokens of a thinking, "
        f"and the share of them that carries {delta:.0%} of it\n{by_layer.to_string(float_format='{:.1%}'.format)}"
    )
