"""Draws the figures as SVG and PNG, with matplotlib (the extra `report`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_mai.attention.results import Record
from lmms_eval_mai.attention.table9 import CONTROLS
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.statistics import Array

STYLES = {
    "small": {"color": "#d95f02", "label": "the small model's thinking"},
    "large": {"color": "#1b6ca8", "label": "its own thinking"},
    "sparse": {"color": "#1b6ca8", "label": "heaviest tokens (sparse transfer)"},
    "random": {"color": "#d95f02", "label": "random tokens, the same number"},
    "last": {"color": "#7a9a01", "label": "last tokens, the same number"},
}


def check_installed() -> None:
    """Raise `MaiError` if matplotlib is missing, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MaiError(
            f'The attention analysis needs matplotlib ({error}). Install it: pip install "lmms-eval-mai[report]".'
        ) from None


def draw_figures(folder: Path, tables: Mapping[str, Sequence[Record]], delta: float) -> None:
    """Draw Figures 3 to 5: the weight of the whole thinking, and the share of its tokens that carries `delta` of it,
    by layer and by head. `tables`: the rows of `figure3` and `figures4_5`."""
    titles = {
        "total_weight": "attention on all thinking tokens",
        "token_share": f"share of thinking tokens with {delta:.0%} of it",
    }
    figure = _figure(3.4)
    for part, axes, (column, title) in zip("ab", figure.subplots(1, 2), titles.items(), strict=True):
        _lines(axes, tables["figure3"], column, f"({part}) {title}")
    figure.axes[0].legend(frameon=False)
    _save(figure, folder / "figure3")
    for number, (column, title) in enumerate(titles.items(), 4):
        _heads(folder / f"figure{number}", title, tables["figures4_5"], column)


def draw_table9(folder: Path, rows: Sequence[Record]) -> None:
    """Draw Table 9: score and number of kept tokens by layer, with the controls and with full and no thinking."""
    (full,), (simple,) = ([row for row in rows if row["method"] == name] for name in ("full", "simple"))
    figure = _figure(3.4)
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(("sparse", *CONTROLS)):
        found = [row for row in rows if row["method"] == name]
        centre, low, high = _columns(found, "score")
        place = np.arange(len(found)) + (number - 1) * 0.2
        left.errorbar(place, centre, yerr=[centre - low, high - centre], fmt="o", capsize=2, **STYLES[name])
    for row, label, style in ((full, "all tokens (full transfer)", "--"), (simple, "no thinking", ":")):
        left.axhline(row["score"], color="0.3", linestyle=style, label=label)
    sparse = [row for row in rows if row["method"] == "sparse"]
    ticks = {"xticks": range(len(sparse)), "xticklabels": [row["layer"] for row in sparse]}
    left.set(title="score", xlabel="layer", **ticks)
    right.bar(range(len(sparse)), _columns(sparse, "kept_tokens")[0], color=STYLES["sparse"]["color"])
    right.axhline(full["kept_tokens"], color="0.3", linestyle="--")
    right.set(title="kept tokens of the thinking", xlabel="layer", **ticks)
    figure.legend(*left.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center", fontsize=8)
    _save(figure, folder / "table9")


def _columns(rows: Sequence[Record], name: str) -> list[Array]:
    """Return the numbers of a column, and the ends of their intervals, nan where they are not known."""
    return [np.array([row[column] for row in rows], dtype=float) for column in (name, f"{name}_low", f"{name}_high")]


def _lines(axes: Any, rows: Sequence[Record], column: str, title: str) -> None:
    for writer in SIDES:
        found = [row for row in rows if row["thinking"] == writer]
        layers = [row["layer"] for row in found]
        mean, low, high = _columns(found, column)
        axes.plot(layers, mean, "o-", markersize=3, **STYLES[writer])
        axes.fill_between(layers, low, high, color=STYLES[writer]["color"], alpha=0.2, linewidth=0)
    axes.set(title=title, xlabel="layer", ylim=(0, 1.08 * float(np.nanmax(_columns(rows, column)))))
    axes.locator_params("x", integer=True)


def _heads(path: Path, title: str, rows: Sequence[Record], column: str) -> None:
    """Draw one value per layer and head, for both thinkings. `path`: without its suffix."""
    figure = _figure(3.6)
    panels = figure.subplots(1, len(SIDES))
    heads = max(row["head"] for row in rows)
    values = _columns(rows, column)[0].reshape(len(SIDES), -1, heads)
    for axes, writer, of_writer in zip(panels, SIDES, values, strict=True):
        extent = (0.5, heads + 0.5, len(of_writer) + 0.5, 0.5)
        image = axes.imshow(of_writer, cmap="viridis", vmin=0, vmax=values.max(), aspect="auto", extent=extent)
        axes.set(title=STYLES[writer]["label"], xlabel="head", ylabel="layer")
        axes.locator_params(integer=True)
    figure.colorbar(image, ax=list(panels), label=title)
    _save(figure, path)


def _figure(height: float) -> Any:
    """Return an empty figure. Without pyplot: it needs no display and keeps no figure in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(9, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    """Write the figure as SVG and PNG. The same numbers give the same files."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "lmms-eval-mai"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=150)
