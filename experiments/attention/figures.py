"""Figures 3 to 5, Table 16 and Corollary 1: how the large model attends to the thinking of both models.

The attention is that of the last token of the Reason Transfer prompt (Eq. 9). The paper shows one document; here the
figures are means over documents.

    python -m experiments.attention.figures --model MODEL --task pope_r --small RUN --large RUN --output out/figures
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.attention.documents import Documents, arguments
from experiments.attention.reading import Array, LargeModel, Reading, kept

SIDES = ("small", "large")
LABELS = {"small": "the small model's thinking", "large": "its own thinking"}
TITLES = {"total_weight": "attention on all thinking tokens", "token_share": "share of the tokens with most of it"}
TOP = 15
"""Number of tokens in a row of Table 16."""


def corollary(large: Reading, small: Reading, delta: float) -> pd.DataFrame:
    """Return both sides of Eq. 11 for each layer and head, and of the same bound with the shares that were really kept.

    p is what one head reads from a thinking: the mean of its value vectors, weighted with softmax over the tokens of
    the thinking alone. p' is the same over the kept tokens. c is the largest norm of a vector.

        ||p_l - p_s|| <= ||p'_l - p'_s|| + 4 (1 - delta) c                      Eq. 11
        ||p_l - p_s|| <= ||p'_l - p'_s|| + 2 (1 - S_l) c + 2 (1 - S_s) c        with the kept shares S >= delta
    """
    rows = []
    for layer in range(len(large.weights)):
        (read_l, kept_l, share_l, norm_l), (read_s, kept_s, share_s, norm_s) = (
            _heads(one.weights[layer], one.values[layer], delta) for one in (large, small)
        )
        norm, kept_distance = np.maximum(norm_l, norm_s), np.linalg.norm(kept_l - kept_s, axis=-1)
        of_layer = {
            "layer": layer + 1,
            "left": np.linalg.norm(read_l - read_s, axis=-1),
            "right": kept_distance + 4 * (1 - delta) * norm,
            "right_of_shares": kept_distance + 2 * (2 - share_l - share_s) * norm,
            "trivial": np.linalg.norm(read_l, axis=-1) + np.linalg.norm(read_s, axis=-1),
            "c": norm,
        }
        rows.append(pd.DataFrame(of_layer))
    return pd.concat(rows, ignore_index=True)


def _heads(weights: Array, values: Array, delta: float) -> tuple[Array, Array, Array, Array]:
    """Return p, p', the kept share and the largest norm for each head of a layer. `weights`: (heads, tokens). `values`:
    (groups of heads, tokens, size)."""
    values = np.repeat(values, len(weights) // len(values), axis=0)
    weights = weights / weights.sum(-1, keepdims=True)
    of_kept = np.where(kept(weights, delta), weights, 0.0)
    share = of_kept.sum(-1)
    read, read_kept = (np.einsum("ht,htd->hd", each, values) for each in (weights, of_kept / share[:, None]))
    return read, read_kept, share, np.linalg.norm(values, axis=-1).max(-1)


def table16(reading: Reading, thinking: str, delta: float) -> list[dict[str, Any]]:
    """Return one row for each layer: how many tokens carry delta, and the heaviest tokens. The weight of a token is
    averaged over heads before ranking (B.7)."""
    rows = []
    for number, weights in enumerate(reading.weights.mean(1), 1):
        count = int(kept(weights, delta).sum())
        heaviest = np.argsort(-weights, kind="stable")[:TOP]
        tokens = [f"{reading.tokens[place]!r} {weights[place] / weights.sum():.1%}" for place in heaviest]
        row = {"layer": number, "thinking": thinking, "kept_tokens": count, "token_share": count / len(reading.tokens)}
        rows.append({**row, "heaviest": "  ".join(tokens)})
    return rows


def measure(given: Any, model: LargeModel, documents: Documents) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the rows of the figures (thinking, layer, head), of Table 16 for the first document, and of Corollary 1
    (layer)."""
    texts = {side: documents.thinkings(getattr(given, side), side) for side in SIDES}
    numbers = sorted(texts["small"].keys() & texts["large"].keys())[: given.limit]
    figures, bounds, of_first = [], [], []
    for number in tqdm(numbers, desc="documents"):
        readings = {}
        for side in SIDES:
            text = texts[side][number]
            reading = model.read(documents.transfer(number, text), text, documents.after_thinking(number))
            readings[side] = reading
            layers, heads, tokens = reading.weights.shape
            layer, head = np.indices((layers, heads)).reshape(2, -1) + 1
            total, share = reading.weights.sum(-1), kept(reading.weights, given.delta).sum(-1) / tokens
            columns = {"total_weight": total.ravel(), "token_share": share.ravel()}
            figures.append(pd.DataFrame({"thinking": side, "layer": layer, "head": head, **columns}))
            if number == numbers[0]:
                of_first += table16(reading, side, given.delta)
        bounds.append(corollary(readings["large"], readings["small"], given.delta))
    by_head = pd.concat(figures).groupby(["thinking", "layer", "head"], sort=False).mean().reset_index()
    return by_head, pd.DataFrame(of_first).sort_values("layer", kind="stable"), summary(pd.concat(bounds))


def summary(bounds: pd.DataFrame) -> pd.DataFrame:
    """Return Corollary 1 by layer, in units of c. `says_nothing`: the share of the cases whose right side is at least
    ||p_l|| + ||p_s||, which bounds the left side without any assumption."""
    limit = 1e-9 * bounds["c"]
    found = pd.DataFrame(
        {
            "layer": bounds["layer"],
            "cases": 1,
            "violations": bounds["left"] > bounds["right"] + limit,
            "violations_of_shares": bounds["left"] > bounds["right_of_shares"] + limit,
            "left": bounds["left"] / bounds["c"],
            "right": bounds["right"] / bounds["c"],
            "says_nothing": bounds["right"] >= bounds["trivial"],
        }
    )
    sums = dict.fromkeys(("cases", "violations", "violations_of_shares"), "sum")
    return found.groupby("layer").agg(sums | dict.fromkeys(("left", "right", "says_nothing"), "mean")).reset_index()


def draw(by_head: pd.DataFrame, folder: Path) -> None:
    """Draw Figure 3 (means over heads) and Figures 4 and 5 (each head)."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (column, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for side in SIDES:
            means = by_head[by_head["thinking"] == side].groupby("layer")[column].mean()
            axes.plot(means.index, means, "o-", markersize=3, label=LABELS[side])
        axes.set(title=title, xlabel="layer", ylim=(0, None))
    figure.axes[0].legend(frameon=False)
    _save(figure, folder / "figure3")
    for number, (column, title) in enumerate(TITLES.items(), 4):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for axes, side in zip(figure.subplots(1, 2), SIDES, strict=True):
            grid = by_head[by_head["thinking"] == side].pivot(index="layer", columns="head", values=column)
            extent = (0.5, grid.shape[1] + 0.5, grid.shape[0] + 0.5, 0.5)
            image = axes.imshow(grid, vmin=0, vmax=by_head[column].max(), aspect="auto", extent=extent)
            axes.set(title=LABELS[side], xlabel="head", ylabel="layer")
        figure.colorbar(image, ax=figure.axes, label=title)
        _save(figure, folder / f"figure{number}")


def _save(figure: Figure, path: Path) -> None:
    for kind in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main() -> None:
    parser = arguments(__doc__)
    for side in SIDES:
        parser.add_argument(f"--{side}", required=True, type=Path, help=f"a run with the {side} model's thinking")
    given = parser.parse_args()
    model, documents = LargeModel(given.model, given.device, given.dtype), Documents(given.task)
    by_head, of_first, bounds = measure(given, model, documents)
    given.output.mkdir(parents=True, exist_ok=True)
    names = {"figures": by_head, "table16": of_first, "corollary1": bounds}
    for name, frame in names.items():
        frame.to_csv(given.output / f"{name}.csv", index=False)
    draw(by_head, given.output)
    by_layer = by_head.groupby(["layer", "thinking"], sort=False)[list(TITLES)].mean().unstack()
    print(by_layer.to_markdown(floatfmt=".3f"), bounds.to_markdown(index=False, floatfmt=".3f"), sep="\n\n")


if __name__ == "__main__":
    main()
