"""The figures of one document: how each head of the large model reads the two thinkings."""

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_mai.attention import corollary
from lmms_eval_mai.attention.corollary import BoundCheck
from lmms_eval_mai.attention.sparsity import kept_share, total_weight
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.statistics import Array

VECTORS = ("values", "keys")
"""The vectors that take the place of X in Eq. 11: the values, which attention really adds up, and the keys, with which
it compares the query. In the paper, X is both."""


@dataclass(frozen=True)
class LayerStates:
    """What the heads of one layer have for the tokens of a thinking, at the last token of the prompt."""

    weights: Any
    """Attention probabilities, softmax over the whole context: (heads, tokens)."""
    own_weights: Any
    """The same with softmax over the tokens of the thinking alone, as in Corollary 1."""
    values: Any
    """(heads, tokens, size), those of grouped heads repeated."""
    keys: Any
    """The same, after the rotary embedding."""


@dataclass(frozen=True)
class Reading:
    """How the large model reads one thinking."""

    tokens: tuple[str, ...]
    mean_weights: Array
    """Mean over heads of the attention on each token: (layers, tokens)."""
    total: Array
    """Attention on all tokens (Fig. 4): (layers, heads)."""
    share: Array
    """Share of the tokens that carries delta of it (Fig. 5): (layers, heads)."""


@dataclass(frozen=True)
class DocumentFigures:
    """The figures of one document."""

    readings: Mapping[Side, Reading]
    """Writer of the thinking -> how the large model reads it."""
    checks: Mapping[str, BoundCheck]
    """Eq. 11, by a name in `VECTORS`. Arrays of shape (layers, heads)."""


def measure(
    tokens: Mapping[Side, tuple[str, ...]], states: Mapping[Side, list[LayerStates]], delta: float
) -> DocumentFigures:
    """Return the figures of a document. `tokens`, `states`: by the writer of the thinking; one state per layer."""
    readings = {side: _reading(tokens[side], states[side], delta) for side in SIDES}
    checks = {
        name: corollary.stack(
            [
                corollary.check(
                    (large.own_weights, getattr(large, name)), (small.own_weights, getattr(small, name)), delta
                )
                for large, small in zip(states["large"], states["small"], strict=True)
            ]
        )
        for name in VECTORS
    }
    return DocumentFigures(readings, checks)


def _reading(tokens: tuple[str, ...], layers: list[LayerStates], delta: float) -> Reading:
    weights = np.stack([np.asarray(layer.weights, dtype=np.float64) for layer in layers])
    return Reading(tokens, weights.mean(axis=1), total_weight(weights), kept_share(weights, delta))


class FiguresFolder:
    """Keeps the figures of documents on the disk, so that a command that is run again computes none of them twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, doc_id: int, origin: str) -> DocumentFigures | None:
        """Return the figures of a document. None: there are none, or they were computed from something else. `origin`:
        `digest` of all that they depend on."""
        try:
            with np.load(self._path(doc_id), allow_pickle=False) as file:
                return _of_arrays(dict(file)) if str(file["origin"]) == origin else None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def save(self, doc_id: int, origin: str, figures: DocumentFigures) -> None:
        """Write the figures of a document. A crash leaves no half-written file under their name."""
        path = self._path(doc_id)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, origin=np.array(origin), **_to_arrays(figures))
        os.replace(part, path)

    def _path(self, doc_id: int) -> Path:
        return self._folder / f"{doc_id}.npz"


def digest(*parts: Any) -> str:
    """Return a hash of values that JSON can hold."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _to_arrays(figures: DocumentFigures) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for side, reading in figures.readings.items():
        arrays[f"{side} tokens"] = np.array(json.dumps(reading.tokens))
        for name in ("mean_weights", "total", "share"):
            arrays[f"{side} {name}"] = getattr(reading, name)
    for vectors, check in figures.checks.items():
        for field in fields(BoundCheck):
            arrays[f"{vectors} {field.name}"] = np.asarray(getattr(check, field.name))
    return arrays


def _of_arrays(arrays: Mapping[str, Any]) -> DocumentFigures:
    readings = {
        side: Reading(
            tuple(json.loads(str(arrays[f"{side} tokens"]))),
            *(arrays[f"{side} {name}"] for name in ("mean_weights", "total", "share")),
        )
        for side in SIDES
    }
    checks = {}
    for vectors in VECTORS:
        values = {field.name: arrays[f"{vectors} {field.name}"] for field in fields(BoundCheck)}
        checks[vectors] = BoundCheck(**{**values, "delta": float(values["delta"])})
    return DocumentFigures(readings, checks)
