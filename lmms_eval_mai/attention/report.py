"""Writes the figures and tables of the analysis, and returns them as short texts for the terminal."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_mai.attention import csv_files, drawing, table9
from lmms_eval_mai.attention.corollary import BoundCheck
from lmms_eval_mai.attention.documents import VECTORS, DocumentFigures, Reading
from lmms_eval_mai.attention.sparsity import heaviest_texts, heaviest_tokens, kept_counts, kept_share
from lmms_eval_mai.attention.table9 import Answer, Method, Scorer
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.statistics import Array, Band, band

TOP = 15
"""Number of tokens in a row of Table 16."""

Record = dict[str, Any]


def write_figures(folder: Path, documents: Mapping[int, DocumentFigures], delta: float) -> str:
    """Write Figures 3, 4 and 5 and Table 16. `documents`: at least one, by number."""
    readings = {side: [one.readings[side] for one in documents.values()] for side in SIDES}
    heads = {side: (band([r.total for r in found]), band([r.share for r in found])) for side, found in readings.items()}
    layers = {
        side: (band([r.total.mean(axis=-1) for r in found]), band([r.share.mean(axis=-1) for r in found]))
        for side, found in readings.items()
    }
    csv_files.write(folder / "figure3.csv", [one for side in SIDES for one in _by_layer(side, *layers[side])])
    for number, name, index in ((4, "total_weight", 0), (5, "token_share", 1)):
        records = [one for side in SIDES for one in _by_head(side, name, heads[side][index])]
        csv_files.write(folder / f"figure{number}.csv", records)
    csv_files.write(folder / "table16.csv", [one for side in SIDES for one in _table16(side, readings[side], delta)])
    first = min(documents)
    example = [one for side in SIDES for one in _table16_of_document(side, documents[first].readings[side], delta)]
    csv_files.write(folder / f"table16_document_{first}.csv", example)
    drawing.draw_figure3(
        folder, {side: layers[side][0] for side in SIDES}, {side: layers[side][1] for side in SIDES}, delta
    )
    titles = ("attention on all thinking tokens", f"share of thinking tokens with {delta:.0%} of it")
    for index, title in enumerate(titles):
        drawing.draw_heads(folder / f"figure{4 + index}", title, {side: heads[side][index].mean for side in SIDES})
    return _figure3_text(layers, len(documents), delta)


def write_corollary(folder: Path, documents: Mapping[int, DocumentFigures]) -> str:
    """Write both sides of Eq. 11 per layer and head, and their figure."""
    records: list[Record] = []
    lines = []
    for vectors in VECTORS:
        checks = [one.checks[vectors] for one in documents.values()]
        records += _corollary(vectors, checks)
        lines.append(_corollary_text(vectors, checks))
    csv_files.write(folder / "corollary.csv", records)
    drawing.draw_corollary(folder, [one.checks["values"] for one in documents.values()])
    return "\n".join(lines)


def write_table9(
    folder: Path, answers: Mapping[int, Mapping[Method, Answer]], layers: Sequence[int], score: Scorer
) -> str:
    """Write Table 9 with its controls, its figure, and the answers of all documents."""
    rows = table9.rows(answers, layers, score)
    csv_files.write(folder / "table9.csv", [row.record() for row in rows])
    records = [
        {
            "doc_id": doc_id,
            "method": row.method.name,
            "layer": row.method.layer,
            "score": found,
            **dataclasses.asdict(one[row.method]),
        }
        for row in rows
        for found, (doc_id, one) in zip(row.scores, answers.items(), strict=True)
    ]
    csv_files.write(folder / "table9_documents.csv", records)
    drawing.draw_table9(folder, rows)
    return _table9_text(rows)


def _by_layer(side: Side, total: Band, share: Band) -> Iterator[Record]:
    for layer in range(len(total.mean)):
        yield {
            "thinking": side,
            "layer": layer + 1,
            "documents": total.n,
            **_fields("total_weight", total, layer),
            **_fields("token_share", share, layer),
        }


def _by_head(side: Side, name: str, found: Band) -> Iterator[Record]:
    for layer, head in np.ndindex(found.mean.shape):
        place = {"thinking": side, "layer": layer + 1, "head": head + 1, "documents": found.n}
        yield {**place, **_fields(name, found, (layer, head))}


def _table16(side: Side, readings: Sequence[Reading], delta: float) -> Iterator[Record]:
    """Return the token texts with the largest mean share of the weight, by layer."""
    shares = band([kept_share(one.mean_weights, delta) for one in readings])
    counts = band([kept_counts(one.mean_weights, delta) for one in readings])
    for layer in range(len(shares.mean)):
        documents = [(one.tokens, one.mean_weights[layer].tolist()) for one in readings]
        for rank, token in enumerate(heaviest_texts(documents, TOP)):
            yield {
                "thinking": side,
                "layer": layer + 1,
                "documents": len(readings),
                **_fields("kept_tokens", counts, layer),
                **_fields("token_share", shares, layer),
                "rank": rank + 1,
                "token": token.text,
                "weight_share": token.share,
                "documents_with_token": token.documents,
            }


def _table16_of_document(side: Side, reading: Reading, delta: float) -> Iterator[Record]:
    """Return the heaviest tokens of one document, by layer: the form of the paper's Table 16."""
    counts = kept_counts(reading.mean_weights, delta)
    for layer, weights in enumerate(reading.mean_weights):
        for rank, token in enumerate(heaviest_tokens(reading.tokens, weights.tolist(), TOP)):
            yield {
                "thinking": side,
                "layer": layer + 1,
                "kept_tokens": int(counts[layer]),
                "token_share": float(counts[layer] / len(reading.tokens)),
                "rank": rank + 1,
                "token": token.text,
                "weight_share": token.share,
            }


def _corollary(vectors: str, checks: Sequence[BoundCheck]) -> Iterator[Record]:
    """Return Eq. 11 in units of c, by layer and head."""
    sides = {
        name: band([getattr(one, name) / one.norm for one in checks])
        for name in ("distance", "kept_distance", "bound", "bound_of_shares", "slack", "norms")
    }
    smallest = np.min([one.slack / one.norm for one in checks], axis=0)
    counts = {
        name: np.sum([getattr(one, name) for one in checks], axis=0)
        for name in ("vacuous", "above_norms", "violated", "violated_with_shares")
    }
    for layer, head in np.ndindex(smallest.shape):
        yield {
            "vectors": vectors,
            "layer": layer + 1,
            "head": head + 1,
            "documents": len(checks),
            **{key: value for name, one in sides.items() for key, value in _fields(name, one, (layer, head)).items()},
            "smallest_slack": smallest[layer, head],
            **{name: int(one[layer, head]) for name, one in counts.items()},
        }


def _fields(name: str, found: Band, index: Any) -> Record:
    low, high = found.low[index], found.high[index]
    return {name: found.mean[index], f"{name}_low": low, f"{name}_high": high}


def _figure3_text(layers: Mapping[Side, tuple[Band, Band]], documents: int, delta: float) -> str:
    lines = [
        f"Figure 3, {documents:,} documents: attention of the large model on the thinking, and the share of its tokens "
        f"that carries {delta:.0%} of it",
        "layer   small model's thinking   its own thinking",
    ]
    for layer in range(len(layers["small"][0].mean)):
        cells = [f"{total.mean[layer]:8.1%} {share.mean[layer]:8.1%}" for total, share in layers.values()]
        lines.append(f"{layer + 1:>5}   {cells[0]:>22}   {cells[1]:>16}")
    return "\n".join(lines)


def _corollary_text(vectors: str, checks: Sequence[BoundCheck]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([getattr(one, name) / one.norm for one in checks]))

    def total(values: Sequence[Array | Any]) -> int:
        return int(np.sum(values))

    cases = total([one.distance.size for one in checks])
    return (
        f"Corollary 1 with the {vectors}, {cases:,} cases (documents x layers x heads), in units of c: left side "
        f"{mean('distance'):.3f}, right side {mean('bound'):.3f}, with the kept shares {mean('bound_of_shares'):.3f}. "
        f"Violated: {total([one.violated for one in checks]):,}, with the kept shares "
        f"{total([one.violated_with_shares for one in checks]):,}. The right side is 2c or more in "
        f"{total([one.vacuous for one in checks]) / cases:.1%}, and ||p_l|| + ||p_s|| or more in "
        f"{total([one.above_norms for one in checks]) / cases:.1%}."
    )


def _table9_text(rows: Sequence[table9.Row]) -> str:
    lines = [f"Table 9, {rows[0].score.n:,} documents"]
    lines.append("method  layer   score (95% interval)  kept  prefilled   p against full  random    last")
    for row in rows:
        p = {one.other.name: one.corrected_p for one in row.comparisons}
        shown = [f"{p[name]:.3f}" if name in p else "" for name in ("full", "random", "last")]
        score = f"{row.score.value:.3f} ({row.score.low:.3f}-{row.score.high:.3f})"
        lines.append(
            f"{row.method.name:<7} {row.method.layer or '':>5}  {score:>21}  {row.tokens['kept_tokens'].value:>4.1f} "
            f"{row.tokens['prefilled_tokens'].value:>10.1f}  {shown[0]:>15} {shown[1]:>7} {shown[2]:>7}".rstrip()
        )
    return "\n".join(lines)
