"""Draws the figures as SVG and PNG, with matplotlib (the extra `report`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_mai.attention.corollary import BoundCheck
from lmms_eval_mai.attention.table9 import CONTROLS, FULL, SIMPLE, Method, Row
from lmms_eval_mai.errors import MaiError
from lmms_eval_mai.statistics import Array, Band

COLOURS = {"small": "#d95f02", "large": "#1b6ca8", "sparse": "#1b6ca8", "random": "#d95f02", "last": "#7a9a01"}
LABELS = {
    "small": "the small model's thinking",
    "large": "its own thinking",
    "sparse": "heaviest tokens (sparse transfer)",
    "random": "random tokens, the same number",
    "last": "last tokens, the same number",
}
DOTS_PER_INCH = 150


def check_installed() -> None:
    """Raise `MaiError` if matplotlib is missing, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MaiError(
            f'The attention analysis needs matplotlib ({error}). Install it: pip install "lmms-eval-mai[report]".'
        ) from None


def draw_figure3(folder: Path, total: Mapping[str, Band], share: Mapping[str, Band], delta: float) -> None:
    """Draw Figure 3: per layer, (a) the weight of the whole thinking and (b) the share of its tokens that carries
    `delta` of it. `total`, `share`: writer of the thinking -> one value per layer."""
    figure = _figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    _lines(left, total, "(a) attention on all thinking tokens")
    _lines(right, share, f"(b) share of thinking tokens with {delta:.0%} of it")
    left.legend(frameon=False)
    _save(figure, folder / "figure3")


def draw_heads(path: Path, title: str, values: Mapping[str, Array]) -> None:
    """Draw Figure 4 or 5: one value per layer and head, for both thinkings. `path`: without its suffix."""
    figure = _figure(9, 3.6)
    panels = figure.subplots(1, len(values), squeeze=False)[0]
    highest = max(float(one.max()) for one in values.values())
    for axes, (writer, one) in zip(panels, values.items(), strict=True):
        layers, heads = one.shape
        extent = (0.5, heads + 0.5, layers + 0.5, 0.5)
        image = axes.imshow(one, cmap="viridis", vmin=0, vmax=highest, aspect="auto", extent=extent)
        axes.set(title=LABELS[writer], xlabel="head", ylabel="layer")
        _whole_numbers(axes.xaxis)
        _whole_numbers(axes.yaxis)
    figure.colorbar(image, ax=list(panels), label=title)
    _save(figure, path)


def draw_table9(folder: Path, rows: Sequence[Row]) -> None:
    """Draw Table 9: score and number of kept tokens by layer, with the controls and with full and no thinking."""
    by_method = {row.method: row for row in rows}
    layers = sorted(method.layer for method in by_method if method.name == "sparse" and method.layer is not None)
    figure = _figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    positions = np.arange(len(layers))
    for number, name in enumerate(("sparse", *CONTROLS)):
        found = [by_method[Method(name, layer)].score for layer in layers]
        centre = np.array([one.value for one in found])
        error = np.array([[one.value - one.low for one in found], [one.high - one.value for one in found]])
        place = positions + (number - 1) * 0.2
        left.errorbar(place, centre, yerr=error, fmt="o", color=COLOURS[name], capsize=2, label=LABELS[name])
    for method, label, style in ((FULL, "all tokens (full transfer)", "--"), (SIMPLE, "no thinking", ":")):
        left.axhline(by_method[method].score.value, color="0.3", linestyle=style, label=label)
    left.set(title="score", xlabel="layer", xticks=positions, xticklabels=layers)
    kept = [by_method[Method("sparse", layer)].tokens["kept_tokens"].value for layer in layers]
    right.bar(positions, kept, color=COLOURS["sparse"])
    right.axhline(by_method[FULL].tokens["kept_tokens"].value, color="0.3", linestyle="--")
    right.set(title="kept tokens of the thinking", xlabel="layer", xticks=positions, xticklabels=layers)
    figure.legend(*left.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center", fontsize=8)
    _save(figure, folder / "table9")


def draw_corollary(folder: Path, checks: Sequence[BoundCheck]) -> None:
    """Draw both sides of Eq. 11 in units of c, per layer: means over documents and heads. `checks`: one per document,
    with arrays of shape (layers, heads)."""
    figure = _figure(6, 4)
    axes = figure.subplots()
    sides = {
        "left side": ("distance", COLOURS["large"]),
        "right side": ("bound", COLOURS["small"]),
        "right side, with the kept shares": ("bound_of_shares", COLOURS["last"]),
        "$||p_l|| + ||p_s||$, which always holds": ("norms", "0.3"),
    }
    for label, (name, colour) in sides.items():
        means = np.mean([(getattr(one, name) / one.norm).mean(axis=-1) for one in checks], axis=0)
        axes.plot(np.arange(1, len(means) + 1), means, "o-", color=colour, label=label)
    axes.axhline(2, color="0.3", linestyle="--", label="2c, which always holds")
    axes.set(xlabel="layer", ylabel="in units of c", ylim=(0, 2.2))
    _whole_numbers(axes.xaxis)
    figure.legend(frameon=False, ncols=2, loc="outside lower center", fontsize=8)
    _save(figure, folder / "corollary")


def _lines(axes: Any, bands: Mapping[str, Band], title: str) -> None:
    for writer, band in bands.items():
        layers = np.arange(1, len(band.mean) + 1)
        axes.plot(layers, band.mean, "o-", color=COLOURS[writer], markersize=3, label=LABELS[writer])
        axes.fill_between(layers, band.low, band.high, color=COLOURS[writer], alpha=0.2, linewidth=0)
    highest = max(float(np.nanmax([band.mean, band.high])) for band in bands.values())
    axes.set(title=title, xlabel="layer", ylim=(0, 1.08 * highest))
    _whole_numbers(axes.xaxis)


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _figure(width: float, height: float) -> Any:
    """Return an empty figure. Without pyplot: it needs no display and keeps no figure in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    """Write the figure as SVG and PNG. The same numbers give the same files."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "lmms-eval-mai"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=DOTS_PER_INCH)
