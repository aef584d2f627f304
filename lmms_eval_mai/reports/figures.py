"""The data of the figures: score over cost, the flow of documents through the exits, other rules of agreement, and the
distribution of output tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lmms_eval_mai.reports.cascade_tables import RIGHT
from lmms_eval_mai.reports.evidence import COSTS, Evidence
from lmms_eval_mai.reports.method_tables import is_comparable, spent
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Figure
from lmms_eval_mai.reports.rules import curves

BINS = [0, *(2**power for power in range(0, 16))]
"""Limits of the bins of output tokens."""
AXES = {kind: f"{name} for one document" for kind, name in COSTS.items()} | {
    "wall_s": "wall seconds for one document",
    "score": "score, %",
}


def figures(evidence: Evidence) -> Iterator[Figure]:
    """Yield all figures that the runs allow."""
    for benchmark in evidence.benchmarks():
        runs = evidence.of_benchmark(benchmark)
        name = benchmark_name(benchmark)
        points = tuple(point for run in runs if (point := _point(evidence, run, runs)) is not None)
        if points:
            axes = {field: axis for field, axis in AXES.items() if any(one[field] is not None for one in points)}
            yield Figure(f"points-{benchmark}", f"Score over cost, {name}", "points", benchmark, axes, points)
        bins = tuple(one for run in runs if not run.derived for one in _bins(evidence, run))
        if bins:
            axes = {"low": "output tokens of both models", "documents": "documents"}
            yield Figure(f"tokens-{benchmark}", f"Output tokens, {name}", "histogram", benchmark, axes, bins)
    for number, run in enumerate(evidence.traced()):
        name = evidence.name(run.method)
        title = f"Flow of documents, {benchmark_name(run.benchmark)}, {name}"
        axes = {"documents": "documents", "right": "documents with a right answer"}
        yield Figure(f"flow-{number}", title, "flow", run.benchmark, axes, tuple(_flow(run)), name)
    for number, (run, outcomes) in enumerate(curves(evidence)):
        data = tuple(
            {"rule": one.name, "of_the_run": one.is_run, "tokens": one.tokens, "score": one.score.value}
            | {"low": one.score.low, "high": one.score.high, "exits": one.exits}
            for one in outcomes
        )
        name = evidence.name(run.method)
        title = f"Other rules of agreement, {benchmark_name(run.benchmark)}, {name}"
        axes = {"tokens": "output tokens for one document", "score": "score, %"}
        yield Figure(f"rules-{number}", title, "curve", run.benchmark, axes, data, name)


def _point(evidence: Evidence, run: Run, runs: list[Run]) -> dict[str, Any] | None:
    found, score = spent(evidence, run), evidence.score(run)
    if found["tokens"] is None or score is None:
        return None
    named = {"method": evidence.name(run.method), "mode": run.method.mode, "prompt": run.method.prompt}
    return {
        **named,
        "score": score.value,
        **{name: getattr(score, name) for name in ("low", "high", "n")},
        **{name: found[name] for name in ("small_tokens", "large_tokens", "tokens", "compute", "seconds", "wall_s")},
        "dominated": {kind: _dominated(evidence, run, kind, runs) for kind in COSTS},
    }


def _dominated(evidence: Evidence, run: Run, kind: str, runs: list[Run]) -> str | None:
    """Return a method that costs at most as much and is better for sure: the interval of the paired difference is above
    0. Only cascades are compared with other methods. None: there is no such method."""
    cost = evidence.cost(run, kind)
    for other in runs:
        paid, pairs = evidence.cost(other, kind), ((run, other), (other, run))
        # The tables compare only cascades with other methods.
        is_compared = any(one.method.mode == "cascade" and is_comparable(one, two) for one, two in pairs)
        if other is run or not is_compared or cost is None or paid is None or paid.mean() > cost.mean():
            continue
        comparison = evidence.compare(other, run)
        if comparison is not None and comparison.difference.low is not None and comparison.difference.low > 0:
            return evidence.name(other.method)
    return None


def first_answers(run: Run) -> pd.DataFrame:
    """Return one answer to each document, so that figures count documents."""
    return run.samples[run.samples.repeat == 0]


def _bins(evidence: Evidence, run: Run) -> Iterator[dict[str, Any]]:
    counts, limits = np.histogram(first_answers(run).output_tokens.dropna(), bins=[*BINS, np.inf])
    for count, low, high in zip(counts, limits, limits[1:], strict=False):
        if count:
            end = None if np.isinf(high) else int(high)
            yield {"method": evidence.name(run.method), "low": int(low), "high": end, "documents": int(count)}


def _flow(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the bands: from all documents to the exits, and through "disagree" to the later ones."""
    samples = first_answers(run)
    exits = samples.exit
    bands = [
        ("documents", "agree_short", exits == "agree_short"),
        ("documents", "disagree", exits.isin(("agree_think", "transfer"))),
        ("disagree", "agree_think", exits == "agree_think"),
        ("disagree", "transfer", exits == "transfer"),
    ]
    for source, target, chosen in bands:
        right = int((samples.score[chosen] >= RIGHT).sum())
        yield {"source": source, "target": target, "documents": int(chosen.sum()), "right": right}
