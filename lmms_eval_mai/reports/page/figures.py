"""The figures of the page, built with plotly's own classes. The page only shows them, in the colours of its theme.

A colour is the name of one of the page's variables, such as `var(--mai)`, or `var(--mai,0.4)` with an opacity, so that
one figure serves light and dark. `customdata` has the filters that a click sets in the browser of samples.
"""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import figures as data
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.formats import p_value
from lmms_eval_mai.reports.more_tables.methods import MODES, is_comparable
from lmms_eval_mai.reports.page.occupancy import BINS, occupancy
from lmms_eval_mai.reports.page.sample_data import Look, looks, sample_runs
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import Figure, Report

COSTS = {"tokens": ("tokens", "output tokens"), "seconds": ("wall_s", "wall seconds")}
"""Card -> the field of the points, and its unit."""
HOVER = "%{hovertext}<extra></extra>"
Chart = dict[str, Any]
Looks = dict[str, Look]


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
            yield from (_points(figure, card, found) for card in COSTS)
        elif figure.kind == "histogram":
            yield _histogram(figure, found)
        elif figure.kind == "curve":
            yield _curve(figure)
    for run in evidence.of("cascade"):
        yield from _differences(evidence, run, found)
    occupied = [_occupancy(run, evidence.name(run.method)) for run in sample_runs(evidence) if run.ours]
    yield from sorted(occupied, key=lambda chart: "figure" not in chart)


def _chart(card: str, benchmark: str, choice: str, numbers: Sequence[str], figure: go.Figure | None = None) -> Chart:
    made = {} if figure is None else {"figure": figure.to_plotly_json()}
    return {"card": card, "benchmark": benchmark, "choice": choice, "numbers": numbers, **made}


def _new(height: int, left: int = 50, top: int = 8, bottom: int = 42, **layout: Any) -> go.Figure:
    margin = {"l": left, "t": top, "r": 14, "b": bottom}
    return go.Figure(layout={"template": "none", "height": height, "margin": margin, **layout})


def _rows(names: Sequence[str], step: float = 1) -> dict[str, Any]:
    """Return a layout whose y axis has names only, the first on top."""
    axis = {"showline": False, "ticks": "", "showgrid": False, "autorange": "reversed"}
    axis |= {"tickvals": [step * row for row in range(len(names))], "ticktext": [*map(escape, names)]}
    return {"left": round(18 + 6.7 * max(map(len, names))), "yaxis": axis}  # plotly's own measurement is slow


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def _shown(point: dict[str, Any], digits: int = 1) -> str:
    """Return a score, or a difference of scores, with its interval."""
    low, high = point["low"], point["high"]
    interval = "" if low is None or high is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{point['score']:.{digits}f}{interval}"


def _bars(points: Sequence[dict[str, Any]], colour: str) -> dict[str, Any]:
    """Return the error bars of scores. An end that is not known has no bar."""
    ends = [[0 if one[end] is None else abs(one[end] - one["score"]) for one in points] for end in ("high", "low")]
    style = {"color": f"var(--{colour},0.55)", "thickness": 1.5, "width": 3}
    return {"symmetric": False, "array": ends[0], "arrayminus": ends[1], **style}


def _flow(figure: Figure) -> Chart:
    bands = [band for band in figure.data if band["documents"]]
    total = sum(band["documents"] for band in bands if band["source"] == "documents")
    texts = {"documents": f"{total:,} documents"}
    texts |= {band["target"]: _about(band, total).replace(", ", "<br>") for band in bands}
    run = {"task": benchmark_name(figure.benchmark), "method": figure.method}
    filters = {name: run if name == "documents" else {**run, "exit": name} for name in texts}
    places = {name: number for number, name in enumerate(texts)}
    made = _new(330, left=14, top=14, bottom=14).add_sankey(
        arrangement="fixed",
        node_label=[*texts.values()],
        node_color=[f"var(--{name})" for name in texts],
        node_customdata=[*filters.values()],
        node_hoverinfo="none",
        node_pad=50,
        node_thickness=12,
        node_line_width=0,
        link_source=[places[band["source"]] for band in bands],
        link_target=[places[band["target"]] for band in bands],
        link_value=[band["documents"] for band in bands],
        link_label=[texts[band["target"]] for band in bands],
        link_color=[f"var(--{band['target']},0.38)" for band in bands],
        link_customdata=[filters[band["target"]] for band in bands],
        link_hovertemplate="%{label}<extra></extra>",
    )
    numbers = [texts["documents"], *(_about(band, total) for band in bands)]
    return _chart("flow", figure.benchmark, figure.method, numbers, made)


def _about(band: dict[str, Any], total: int) -> str:
    share, right = _share(band["documents"], total), _share(band["right"], band["documents"])
    return f"{band['target']}, {band['documents']:,} ({share}), {right} right"


def _exits(flows: Sequence[Figure], looks: Looks) -> Chart:
    rows = [f"{benchmark_name(flow.benchmark)} {looks[flow.method].short}" for flow in flows]
    made = _new(116 + 42 * len(rows), top=48, barmode="stack", bargap=0.35, showlegend=True, **_rows(rows))
    made.update_xaxes(title_text="documents, %", range=[0, 100])
    numbers: list[str] = []
    for exit in EXITS["cascade"]:
        bands = [next(band for band in flow.data if band["target"] == exit) for flow in flows]
        totals = [sum(band["documents"] for band in flow.data if band["source"] == "documents") for flow in flows]
        texts = [_about(band, total) for band, total in zip(bands, totals, strict=True)]
        numbers += [f"{row}: {text}" for row, text in zip(rows, texts, strict=True)]
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
            hovertext=texts,
            hovertemplate=HOVER,
            customdata=[{"task": benchmark_name(one.benchmark), "method": one.method, "exit": exit} for one in flows],
        )
    return _chart("exits", "", "", numbers, made)


def _points(figure: Figure, card: str, looks: Looks) -> Chart:
    """Return score over cost, with the line of the methods that no other one beats in both."""
    field, unit = COSTS[card]
    points = sorted((one for one in figure.data if one[field]), key=lambda one: (one[field], -one["score"]))
    if not points:
        return _chart(card, figure.benchmark, "", [f"No run has {unit} of its own."])
    best = [one for place, one in enumerate(points) if one["score"] > max([-1, *(o["score"] for o in points[:place])])]
    texts = {
        one["method"]: f"score {_shown(one)}, {one[field]:.3g} {unit} per document, n = {one['n']:,}" for one in points
    }
    made = _new(
        350 + 7 * len(points), bottom=70 + 7 * len(points), showlegend=True, legend={"y": -0.2, "yanchor": "top"}
    )
    made.update_xaxes(title_text=f"{unit} for one document (logarithmic)", type="log", nticks=8)
    made.update_yaxes(title_text="score, %")
    made.add_scatter(
        x=[one[field] for one in best],
        y=[one["score"] for one in best],
        mode="lines",
        line={"color": "var(--strong)", "width": 1.5, "dash": "dot", "shape": "hv"},
        hoverinfo="skip",
        showlegend=False,
    )
    for one in figure.data:
        look = looks[one["method"]]
        if one["method"] in texts:
            made.add_scatter(
                x=[one[field]],
                y=[one["score"]],
                name=escape(look.short),
                mode="markers",
                marker=_mark(look),
                error_y=_bars([one], look.role),
                hovertext=f"<b>{escape(one['method'])}</b><br>{texts[one['method']]}",
                hovertemplate=HOVER,
            )
    return _chart(card, figure.benchmark, "", [f"{name}: {text}" for name, text in texts.items()], made)


def _mark(look: Look) -> dict[str, Any]:
    return {"color": f"var(--{look.role})", "symbol": look.symbol, "size": 11}


def _differences(evidence: Evidence, run: Run, looks: Looks) -> Iterator[Chart]:
    """Yield the differences of a cascade from the other methods of its models."""
    others = [other for mode in MODES for other in evidence.of(mode, run.benchmark) if other is not run]
    compared = [(other.method, evidence.compare(run, other)) for other in others if is_comparable(run, other)]
    found = {evidence.name(method): comparison for method, comparison in compared if comparison is not None}
    rows = [looks[name].short for name in found]
    texts = []
    made = _new(max(190, 80 + 27 * len(rows)), **_rows(rows or [""]))
    made.update_xaxes(title_text="points", zeroline=True, zerolinecolor="var(--quiet)", rangemode="tozero")
    for row, (name, one) in enumerate(found.items()):
        estimate = one.difference
        point = {"score": estimate.value, "low": estimate.low, "high": estimate.high}
        p = "" if one.p is None else f", p {p_value(one.p)}"
        texts.append(f"against {name}: {_shown(point, 2)} points, n = {one.n:,}{p}")
        made.add_scatter(
            x=[estimate.value],
            y=[row],
            mode="markers",
            marker=_mark(looks[name]),
            error_x=_bars([point], "quiet"),
            hovertext=escape(texts[-1]),
            hovertemplate=HOVER,
        )
    if found:
        yield _chart("differences", run.benchmark, evidence.name(run.method), texts, made)


def _curve(figure: Figure) -> Chart:
    """Return score over tokens with other rules of agreement. Rules with one outcome share a point."""
    points: dict[tuple[float, float], dict[str, Any]] = {}
    for one in sorted(figure.data, key=lambda one: float(one["tokens"])):
        point = points.setdefault((one["tokens"], one["score"]), {**one, "rules": [], "of_the_run": False})
        point["rules"].append(one["rule"])
        point["of_the_run"] |= one["of_the_run"]
    shown = [*points.values()]
    texts = [f"{', '.join(one['rules'])}: score {_shown(one, 2)}, {one['tokens']:.1f} output tokens" for one in shown]
    made = _new(330).add_scatter(
        x=[one["tokens"] for one in shown],
        y=[one["score"] for one in shown],
        mode="lines+markers+text",
        text=[escape(", ".join(rule.rpartition("=")[2] for rule in one["rules"])) for one in shown],
        textposition="top center",
        cliponaxis=False,
        line={"color": "var(--mai)", "width": 1.5},
        marker={"size": 12, "symbol": ["circle-open-dot" if one["of_the_run"] else "circle" for one in shown]},
        error_y=_bars(shown, "mai"),
        hovertext=[*map(escape, texts)],
        hovertemplate=HOVER,
    )
    made.update_xaxes(title_text="output tokens for one document")
    made.update_yaxes(title_text="score, %")
    return _chart("rules", figure.benchmark, figure.method, texts, made)


def _histogram(figure: Figure, looks: Looks) -> Chart:
    """Return the distribution of output tokens of each method, one below the other."""
    lows = [one["low"] for one in figure.data]
    bins = [low for low in data.BINS if min(lows) <= low <= max(lows)]
    names = [f"{low:,}-{2 * low - 1:,}" if low > 1 else str(low) for low in bins]
    methods = list(dict.fromkeys(one["method"] for one in figure.data))
    made = _new(
        80 + 38 * len(methods), bargap=0.12, barmode="overlay", **_rows([looks[one].short for one in methods], 1.2)
    )
    made.update_xaxes(title_text="output tokens", showgrid=False, type="category")
    numbers = []
    for row, method in enumerate(methods):
        counts = {one["low"]: one["documents"] for one in figure.data if one["method"] == method}
        total = sum(counts.values())
        texts = [
            f"{name} tokens: {counts.get(low, 0):,} of {total:,} documents"
            for low, name in zip(bins, names, strict=True)
        ]
        numbers.append(f"{method}: {', '.join(f'{counts[low]:,} with {names[bins.index(low)]}' for low in counts)}")
        made.add_bar(
            x=names,
            y=[-counts.get(low, 0) / total for low in bins],  # the axis is reversed
            base=1.2 * row + 0.4,
            marker_color=f"var(--{looks[method].role})",
            hovertext=[f"<b>{escape(method)}</b><br>{text}" for text in texts],
            hovertemplate=HOVER,
        )
    return _chart("histogram", figure.benchmark, "", numbers, made)


def _occupancy(run: Run, name: str) -> Chart:
    """Return the calls in flight of both engines, the large one on top."""
    found = occupancy(run)
    if found is None:
        why = "The calls of this run have no start times: an older version made the run, or other runs made its calls."
        return _chart("occupancy", run.benchmark, name, [why])
    seconds, sides = (
        found["seconds"],
        {side: found["sides"][side] for side in ("large", "small") if side in found["sides"]},
    )
    texts = {
        side: f"{side} model: {one['calls']:,} calls, busy {_share(one['busy'], 1)}" for side, one in sides.items()
    }
    made = _new(130 + 110 * len(sides), top=42, showlegend=True, grid={"rows": len(sides), "columns": 1, "ygap": 0.2})
    made.update_xaxes(title_text="seconds since the first call", range=[0, seconds])
    for row, (side, one) in enumerate(sides.items(), 1):
        made.add_scatter(
            x=[round(seconds * part / BINS, 2) for part in range(BINS)],
            y=one["in_flight"],
            yaxis=f"y{row}",
            name=texts[side],
            mode="lines",
            line={"color": f"var(--{side})", "width": 1.2, "shape": "hv"},
            fill="tozeroy",
            fillcolor=f"var(--{side},0.3)",
            hovertemplate=f"%{{y:.1f}} calls at %{{x:.1f}} s<extra>{side}</extra>",
        )
    numbers = [
        *texts.values(),
        f"{seconds:,.0f} s" + (f", without pauses of {one:,.0f} s" if (one := found["paused"]) else ""),
    ]
    return _chart("occupancy", run.benchmark, name, numbers, made)
