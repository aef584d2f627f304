"""The figures of the page, built with plotly's own classes: the flow, score over cost, and other rules.

A colour is the name of one of the page's variables, such as `var(--mai)`, or `var(--mai,0.4)` with an opacity, so that
one figure serves light and dark. `customdata` has the filters that a click sets in the list of samples.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.formats import frame
from lmms_eval_mai.reports.page.samples import Look, looks
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Report
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.reports.summary import ORDER, RIGHT

COSTS = {"tokens": "output tokens of both models", "wall_s": "wall seconds"}
TICKS = [step * 10.0**power for power in range(-4, 6) for step in (1, 2, 5)]
"""The numbers of a logarithmic axis. plotly's own leave out zeros."""
HOVER = "%{hovertext}<extra></extra>"
Chart = dict[str, Any]


def charts(report: Report, runs: Runs) -> Iterator[Chart]:
    """Yield each figure with its card, its title, and its numbers in words."""
    styles = looks(runs)
    for run in runs.traced():
        yield _flow(run, runs, report.names)
    methods = frame(report.table("methods"))
    sides = methods.reindex(columns=["small_tokens", "large_tokens"]).astype(float)
    methods["tokens"] = sides.sum(axis=1, min_count=1)
    for benchmark, rows in methods.groupby("benchmark", sort=False):
        for cost, unit in COSTS.items():
            known = rows[rows[cost].gt(0) & rows.score.notna()] if cost in rows else rows[:0]
            if len(known):
                yield _points(str(benchmark), known.assign(cost=known[cost]), unit, styles, report.names)
    found = {table.key: table for table in report.tables}
    if "rules" in found:
        for (benchmark, method), rows in frame(found["rules"]).groupby(["benchmark", "method"], sort=False):
            yield _rules(f"{benchmark}, {report.names.get(str(method), method)}", rows)


def _chart(card: str, title: str, words: Sequence[str], figure: go.Figure) -> Chart:
    return {"card": card, "title": title, "words": words, "figure": figure.to_plotly_json()}


def _new(height: int, **layout: Any) -> go.Figure:
    margin = {"l": 50, "t": 8, "r": 14, "b": 42}
    return go.Figure(layout={"template": "none", "height": height, "margin": margin, **layout})


def _bars(rows: pd.DataFrame, colour: str) -> dict[str, Any]:
    """Return the error bars of scores. An end that is not known has no bar."""
    known = rows.reindex(columns=["score", "score_low", "score_high"]).astype(float)
    up, down = (known[end].fillna(known.score) - known.score for end in ("score_high", "score_low"))
    return {
        "symmetric": False,
        "array": up.abs().tolist(),
        "arrayminus": down.abs().tolist(),
        "color": f"var(--{colour},0.55)",
        "width": 3,
    }


def _scored(row: Any, digits: int = 1) -> str:
    """Return the score of a row in words."""
    low, high = (getattr(row, f"score_{end}", float("nan")) for end in ("low", "high"))
    known = pd.notna(low) and pd.notna(high)
    return Estimate(row.score, 0, low if known else None, high if known else None).shown(digits)


def _colour(node: str) -> str:
    """Return the name of the colour of a node. The exits of one's own methods share one."""
    return node if node in (*ORDER, "documents", "check_failed") else "other"


def _flow(run: Run, runs: Runs, names: Any) -> Chart:
    """Return the bands from all documents to the exits, and through `check_failed` to the later ones."""
    samples = run.samples
    first, *later = run.setup.method.exits
    bands = [("documents", first, samples.exit == first), ("documents", "check_failed", samples.exit.isin(later))]
    bands += [("check_failed", exit, samples.exit == exit) for exit in later]
    bands = [band for band in bands if band[2].any()]
    name, task = runs.name(run.setup), benchmark_name(run.benchmark)
    labels = {"documents": f"{len(samples):,} documents"}
    for _, target, flags in bands:
        right = f"<br>{100 * (samples.score[flags] >= RIGHT).mean():.1f}% right" * (target != "check_failed")
        labels[target] = f"{target}<br>{flags.sum():,} ({100 * flags.mean():.1f}%){right}"
    places = {node: number for number, node in enumerate(labels)}
    filters = {
        node: {"task": task, "method": name, "exit": node if node in set(later) | {first} else ""} for node in labels
    }
    made = _new(330, margin={"l": 14, "t": 14, "r": 14, "b": 14}).add_sankey(
        arrangement="fixed",
        node_label=[*labels.values()],
        node_color=[f"var(--{_colour(node)})" for node in labels],
        node_customdata=[*filters.values()],
        node_hoverinfo="none",
        node_pad=50,
        node_thickness=12,
        node_line_width=0,
        link_source=[places[source] for source, _, _ in bands],
        link_target=[places[target] for _, target, _ in bands],
        link_value=[int(flags.sum()) for _, _, flags in bands],
        link_label=[labels[target] for _, target, _ in bands],
        link_color=[f"var(--{_colour(target)},0.38)" for _, target, _ in bands],
        link_customdata=[filters[target] for _, target, _ in bands],
        link_hovertemplate="%{label}<extra></extra>",
    )
    return _chart(
        "flow", f"{task}, {names.get(name, name)}", [one.replace("<br>", ", ") for one in labels.values()], made
    )


def _points(benchmark: str, rows: pd.DataFrame, unit: str, styles: dict[str, Look], names: Any) -> Chart:
    """Return score over cost, with the line of the methods that no other one beats in both."""
    made = _new(350 + 7 * len(rows), margin={"l": 50, "t": 8, "r": 14, "b": 70 + 7 * len(rows)}, showlegend=True)
    made.update_xaxes(title_text=f"{unit} (logarithmic)", type="log")
    made.update_xaxes(tickvals=TICKS, ticktext=[f"{tick:,g}" for tick in TICKS])
    made.update_yaxes(title_text="score, %")
    made.update_layout(legend={"y": -0.2, "yanchor": "top"})
    ordered = rows.sort_values(["cost", "score"], ascending=[True, False])
    best = ordered[ordered.score > ordered.score.cummax().shift(fill_value=-1)]
    line = {"color": "var(--strong)", "width": 1.5, "dash": "dot", "shape": "hv"}
    x, y = best.cost.tolist(), best.score.tolist()
    made.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    words = []
    for number, row in enumerate(rows.itertuples()):
        look = styles[row.method]
        words.append(f"{row.method}: score {_scored(row)}, {row.cost:.3g} {unit} per document, n = {row.n:,}")
        made.add_scatter(
            x=[row.cost],
            y=[row.score],
            mode="markers",
            marker={"color": f"var(--{look.role})", "symbol": look.symbol, "size": 11},
            name=escape(names.get(row.method, row.method)),
            error_y=_bars(rows[number : number + 1], look.role),
            hovertext=escape(words[-1]),
            hovertemplate=HOVER,
            cliponaxis=False,
        )
    return _chart("points", f"{benchmark}, {unit}", words, made)


CURVES = {
    "mai": "mai",
    "mai_confidence": "full-rt",
    "mai_confidence_direct": "transfer",
    "own_thinking": "agree_short",
}
"""Method -> the colour of its curve. Those of one's own share one."""


def _rules(title: str, rows: pd.DataFrame) -> Chart:
    """Return score over output tokens with other rules, one curve for each first check. Rules with one outcome share a
    point; a ring is the rule of a run."""
    made, words = _new(360, showlegend=True), []
    methods = rows.rule.str.extract(r"method=(\w+)", expand=False)
    every = rows.assign(of_method=methods, is_run=rows.run.eq("yes") if "run" in rows else False)
    for check in methods.drop_duplicates():
        colour = CURVES.get(check, "other")
        chosen = every[every.of_method == check].sort_values("output_tokens")
        points = chosen.groupby(["output_tokens", "score"], sort=False, as_index=False).agg(
            {"rule": ", ".join, "score_low": "first", "score_high": "first", "is_run": "any"}
        )
        texts = [
            f"{row.rule}: score {_scored(row, 2)}, {row.output_tokens:.1f} output tokens" for row in points.itertuples()
        ]
        words += texts
        made.add_scatter(
            name=check,
            x=points.output_tokens.tolist(),
            y=points.score.tolist(),
            mode="lines+markers",
            line={"color": f"var(--{colour})", "width": 1.5},
            marker={
                "size": 10,
                "color": f"var(--{colour})",
                "symbol": ["circle-open-dot" if one else "circle" for one in points.is_run],
            },
            error_y=_bars(points, colour),
            cliponaxis=False,
            hovertext=[*map(escape, texts)],
            hovertemplate=HOVER,
        )
    made.update_xaxes(title_text="output tokens for one document")
    made.update_yaxes(title_text="score, %")
    return _chart("rules", title, words, made)
