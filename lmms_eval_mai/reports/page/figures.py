"""The figures of the page, built with plotly's own classes. The page only shows them, in the colours of its theme.

A colour is the name of one of the page's variables, such as `var(--mai)`, or `var(--mai,0.4)` with an opacity, so that
one figure serves light and dark. `customdata` has the filters that a click sets in the browser of samples.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

import plotly.graph_objects as go

from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.formats import p_value
from lmms_eval_mai.reports.method_tables import Against, comparisons
from lmms_eval_mai.reports.page.sample_data import Look, looks
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Figure, Report

COSTS = (
    ("tokens", "tokens", "output tokens"),
    ("compute", "compute", "GFLOP"),
    ("seconds", "wall_s", "wall seconds"),
    ("seconds", "seconds", "profile seconds"),
)
"""Card, field of the points, and unit. A figure of the seconds of profiles is in the card of seconds."""
ALWAYS = ("tokens", "wall_s")
"""Fields whose card has a sentence if no run has them."""
TICKS = [step * 10.0**power for power in range(-4, 6) for step in (1, 2, 5)]
"""The numbers of a logarithmic axis. plotly's own leave out zeros."""
HOVER = "%{hovertext}<extra></extra>"
Chart = dict[str, Any]
Looks = dict[str, Look]
Point = dict[str, Any]


def charts(report: Report, evidence: Evidence) -> Iterator[Chart]:
    """Yield each figure with its card, its benchmark (empty: all), its name in the select of the card, and its numbers
    in words. Without `figure`, the words say why there is none."""
    found = looks(evidence)
    flows = [figure for figure in report.figures if figure.kind == "flow"]
    yield from map(_flow, flows)
    if flows:
        yield _exits(flows, found)
    for figure in report.figures:
        if figure.kind == "points":
            fields = [cost for cost in COSTS if cost[1] in ALWAYS or any(point[cost[1]] for point in figure.data)]
            yield from (_points(figure, *cost, found) for cost in fields)
        elif figure.kind == "curve":
            yield _curve(figure)
        elif figure.kind == "reliability":
            yield _reliability(figure)
    for _, same in groupby(comparisons(evidence), key=lambda one: id(one[0])):
        yield _differences(list(same), evidence, found)


def _chart(card: str, benchmark: str, choice: str, numbers: Sequence[str], figure: go.Figure | None = None) -> Chart:
    made = {} if figure is None else {"figure": figure.to_plotly_json()}
    return {"card": card, "benchmark": benchmark, "choice": choice, "numbers": numbers, **made}


def _new(height: int, left: int = 50, top: int = 8, bottom: int = 42, **layout: Any) -> go.Figure:
    margin = {"l": left, "t": top, "r": 14, "b": bottom}
    return go.Figure(layout={"template": "none", "height": height, "margin": margin, **layout})


def _rows(names: Sequence[str]) -> dict[str, Any]:
    """Return a layout whose y axis has names only, the first on top."""
    axis = {"showline": False, "ticks": "", "showgrid": False, "autorange": "reversed"}
    axis |= {"tickvals": [*range(len(names))], "ticktext": [*map(escape, names)]}
    return {"left": round(18 + 6.7 * max(map(len, names))), "yaxis": axis}  # plotly's own measurement is slow


def _scored(point: Point, digits: int = 1) -> str:
    return Estimate(point["score"], 0, point["low"], point["high"]).shown(digits)


def _bars(points: Sequence[Point], colour: str) -> dict[str, Any]:
    """Return the error bars of scores. An end that is not known has no bar."""
    up, down = ([abs((one[end] or one["score"]) - one["score"]) for one in points] for end in ("high", "low"))
    return {"symmetric": False, "array": up, "arrayminus": down, "color": f"var(--{colour},0.55)", "width": 3}


def _mark(x: float, y: float, look: Look, text: str, **more: Any) -> go.Scatter:
    marker = {"color": f"var(--{look.role})", "symbol": look.symbol, "size": 11}
    more |= {"name": escape(look.short), "hovertext": escape(text), "hovertemplate": HOVER, "cliponaxis": False}
    return go.Scatter(x=[x], y=[y], mode="markers", marker=marker, **more)


def _band(band: dict[str, Any], total: int) -> str:
    documents = band["documents"]
    right = 100 * band["right"] / documents if documents else 0
    return f"{band['target']}, {documents:,} ({100 * documents / total:.1f}%), {right:.1f}% right"


def _filter(flow: Figure, exit: str = "") -> dict[str, str]:
    return {"task": benchmark_name(flow.benchmark), "method": flow.method, "exit": exit}


def _flow(figure: Figure) -> Chart:
    bands = [band for band in figure.data if band["documents"]]
    total = sum(band["documents"] for band in bands if band["source"] == "documents")
    later = sum(band["documents"] for band in bands if band["target"] == "disagree")
    texts = {band["target"]: _band(band, total) for band in bands}
    names = {"documents": f"{total:,} documents"} | {name: text.replace(", ", "<br>") for name, text in texts.items()}
    on_phone = names | {"documents": f"{total:,} documents<br>{later:,} disagree", "disagree": ""}
    places = {name: number for number, name in enumerate(names)}
    made = _new(330, left=14, top=14, bottom=14, meta=[on_phone[name] for name in names]).add_sankey(
        arrangement="fixed",
        node_label=[*names.values()],
        node_color=[f"var(--{name})" for name in names],
        node_customdata=[_filter(figure, name if name in texts else "") for name in names],
        node_hoverinfo="none",
        node_pad=50,
        node_thickness=12,
        node_line_width=0,
        link_source=[places[band["source"]] for band in bands],
        link_target=[places[band["target"]] for band in bands],
        link_value=[band["documents"] for band in bands],
        link_label=[names[band["target"]] for band in bands],
        link_color=[f"var(--{band['target']},0.38)" for band in bands],
        link_customdata=[_filter(figure, band["target"]) for band in bands],
        link_hovertemplate="%{label}<extra></extra>",
    )
    return _chart("flow", figure.benchmark, figure.method, [names["documents"], *texts.values()], made)


def _exits(flows: Sequence[Figure], looks: Looks) -> Chart:
    rows = [f"{benchmark_name(flow.benchmark)} {looks[flow.method].short}" for flow in flows]
    totals = [sum(band["documents"] for band in flow.data if band["source"] == "documents") for flow in flows]
    made = _new(116 + 42 * len(rows), top=48, barmode="stack", bargap=0.35, showlegend=True, **_rows(rows))
    made.update_xaxes(title_text="documents, %", range=[0, 100])
    numbers: list[str] = []
    for exit in dict.fromkeys(band["target"] for flow in flows for band in flow.data if band["target"] != "disagree"):
        none = {"target": exit, "documents": 0, "right": 0}
        bands = [next((band for band in flow.data if band["target"] == exit), none) for flow in flows]
        texts = [f"{row}: {_band(band, total)}" for row, band, total in zip(rows, bands, totals, strict=True)]
        made.add_bar(
            name=exit,
            orientation="h",
            x=[100 * band["documents"] / total for band, total in zip(bands, totals, strict=True)],
            marker={"color": f"var(--{exit})", "line": {"color": "var(--card)", "width": 1}},
            texttemplate="%{x:.1f}%",
            textposition="inside",
            insidetextanchor="middle",
            textfont_color=f"var(--on-{exit})",
            textangle=0,
            hovertext=[*map(escape, texts)],
            hovertemplate=HOVER,
            customdata=[_filter(flow, exit) for flow in flows],
        )
        numbers += texts
    return _chart("exits", "", "", numbers, made)


def _points(figure: Figure, card: str, field: str, unit: str, looks: Looks) -> Chart:
    """Return score over cost, with the line of the methods that no other one beats in both. A pale point: a method
    that costs at most as much is better for sure."""
    points = [one for one in figure.data if one[field]]
    choice = unit if card == "seconds" else ""
    if not points:
        return _chart(card, figure.benchmark, choice, [f"No run has {unit} of its own."])
    made = _new(350 + 7 * len(points), bottom=70 + 7 * len(points), showlegend=True)
    made.update_xaxes(title_text=f"{unit} for one document (logarithmic)", type="log")
    made.update_xaxes(tickvals=TICKS, ticktext=[f"{tick:,g}" for tick in TICKS])
    made.update_yaxes(title_text="score, %")
    made.update_layout(legend={"y": -0.2, "yanchor": "top"})
    best: list[Point] = []
    for one in sorted(points, key=lambda one: (one[field], -one["score"])):
        best += [one] if not best or one["score"] > best[-1]["score"] else []
    line = {"color": "var(--strong)", "width": 1.5, "dash": "dot", "shape": "hv"}
    x, y = [one[field] for one in best], [one["score"] for one in best]
    made.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)
    texts = []
    for one in points:
        look, better = looks[one["method"]], one["dominated"].get(field)
        text = f"{one['method']}: score {_scored(one)}, {one[field]:.3g} {unit} per document, n = {one['n']:,}"
        texts.append(text + (f"; {better} is better and not dearer" if better else ""))
        mark = _mark(one[field], one["score"], look, texts[-1], error_y=_bars([one], look.role))
        made.add_trace(mark.update(marker_opacity=0.45 if better else 1))
    return _chart(card, figure.benchmark, choice, texts, made)


def _differences(compared: Sequence[Against], evidence: Evidence, looks: Looks) -> Chart:
    run = compared[0][0]
    names = [evidence.name(other.method) for _, other, _ in compared]
    made = _new(max(190, 80 + 27 * len(names)), **_rows([looks[other].short for other in names]))
    made.update_xaxes(title_text="points", zeroline=True, zerolinecolor="var(--quiet)", rangemode="tozero")
    texts = []
    for row, (other, (_, _, one)) in enumerate(zip(names, compared, strict=True)):
        found = one.difference
        point = {"score": found.value, "low": found.low, "high": found.high}
        p = f"p {p_value(one.p)}, adjusted {p_value(one.adjusted or 0.0)}"
        texts.append(f"against {other}: {found.shown(2)} points, n = {one.n:,}, {p}")
        made.add_trace(_mark(found.value, row, looks[other], texts[-1], error_x=_bars([point], "quiet")))
    return _chart("differences", run.benchmark, evidence.name(run.method), texts, made)


CURVES = {"agreement": "mai", "confidence": "full-rt", "both": "other", None: "large"}
"""First check -> the colour of its curve. None: other methods, which are points."""


def _curve(figure: Figure) -> Chart:
    """Return score over output tokens with other rules of verification, one curve for each first check. Rules with one
    outcome share a point."""
    made, texts = _new(360, showlegend=True), []
    widest = max(one["tokens"] for one in figure.data)
    for verify, colour in CURVES.items():
        points: dict[tuple[float, float], Point] = {}
        for one in sorted(figure.data, key=lambda one: float(one["tokens"])):
            if one["verify"] == verify:
                point = points.setdefault((one["tokens"], one["score"]), {**one, "rules": [], "of_the_run": False})
                point["rules"].append(one["rule"])
                point["of_the_run"] |= one["of_the_run"]
        shown = [*points.values()]
        found = [
            f"{', '.join(one['rules'])}: score {_scored(one, 2)}, {one['tokens']:.1f} output tokens" for one in shown
        ]
        texts += found
        labels, last = [], -widest
        for one in shown:  # a label of a curve needs 4% of the width
            is_free = verify is None or one["tokens"] - last > 0.04 * widest
            names = ("Full RT" if "RT" in rule else rule.rpartition("=")[2] for rule in one["rules"])
            labels.append(", ".join(names) if is_free else "")
            last = one["tokens"] if is_free else last
        if shown:
            made.add_scatter(
                name=verify or "other methods",
                x=[one["tokens"] for one in shown],
                y=[one["score"] for one in shown],
                mode="lines+markers+text" if verify else "markers+text",
                text=labels,
                textposition=[
                    f"bottom {'left' if one['tokens'] > widest / 2 else 'right'}"
                    if verify is None
                    else f"{'bottom' if verify == 'both' else 'top'} center"
                    for one in shown
                ],
                line={"color": f"var(--{colour})", "width": 1.5},
                marker={
                    "size": 10,
                    "color": f"var(--{colour})",
                    "symbol": ["circle-open-dot" if one["of_the_run"] else "circle" for one in shown],
                },
                error_y=_bars(shown, colour),
                cliponaxis=False,
                hovertext=[*map(escape, found)],
                hovertemplate=HOVER,
            )
    made.update_xaxes(title_text="output tokens for one document")
    made.update_yaxes(title_text="score, %")
    return _chart("rules", figure.benchmark, figure.method, texts, made)


def _reliability(figure: Figure) -> Chart:
    """Return how many short answers are right over their mean probability, beside the line on which both are equal."""
    made, bins = _new(300), figure.data
    texts = [
        f"mean probability {one['probability']:.1f}%: {_scored(one, 1)}% of {one['n']:,} answers are right"
        for one in bins
    ]
    made.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line={"color": "var(--quiet)", "dash": "dot", "width": 1})
    made.add_scatter(
        x=[one["probability"] for one in bins],
        y=[one["score"] for one in bins],
        mode="lines+markers",
        line={"color": "var(--large)", "width": 1.5},
        marker={"size": 10, "color": "var(--large)"},
        error_y=_bars(bins, "large"),
        cliponaxis=False,
        hovertext=[*map(escape, texts)],
        hovertemplate=HOVER,
    )
    made.update_xaxes(title_text="mean probability of the large model's short answer, %", range=[0, 102])
    made.update_yaxes(title_text="right answers, %", range=[0, 102])
    return _chart("reliability", figure.benchmark, figure.method, texts, made)
