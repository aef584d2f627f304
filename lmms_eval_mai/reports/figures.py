"""The data of the figures: score over cost, the flow of documents through the exits, other rules of agreement, and the
distribution of output tokens."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import is_right, traced
from lmms_eval_mai.reports.more_tables.methods import MODES, cost
from lmms_eval_mai.reports.more_tables.rules import curves, rule_name
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import Figure

BINS = [0, *(2**power for power in range(0, 16))]
"""Limits of the bins of output tokens."""


def figures(evidence: Evidence) -> Iterator[Figure]:
    """Yield all figures that the runs allow."""
    for benchmark in evidence.benchmarks():
        runs = [run for mode in MODES for run in evidence.of(mode, benchmark)]
        name = benchmark_name(benchmark)
        points = tuple(point for run in runs if (point := _point(evidence, run)) is not None)
        if points:
            axes = {"tokens": "output tokens for one document", "wall_s": "wall seconds for one document"}
            axes |= {"score": "score, %"}
            yield Figure(f"points-{benchmark}", f"Score over cost, {name}", "points", benchmark, axes, points)
        bins = tuple(one for run in runs if not run.derived for one in _bins(evidence, run))
        if bins:
            axes = {"low": "output tokens of both models", "documents": "documents"}
            yield Figure(f"tokens-{benchmark}", f"Output tokens, {name}", "histogram", benchmark, axes, bins)
    for number, run in enumerate(traced(evidence)):
        name = evidence.name(run.method)
        title = f"Flow of documents, {benchmark_name(run.benchmark)}, {name}"
        axes = {"documents": "documents", "right": "documents with a right answer"}
        yield Figure(f"flow-{number}", title, "flow", run.benchmark, axes, tuple(_flow(run)), name)
    for number, (run, outcomes) in enumerate(curves(evidence)):
        data = tuple(
            {
                "rule": rule_name(run.benchmark, one.rules),
                "of_the_run": one.is_run,
                "tokens": one.tokens,
                "score": one.score.value,
                "low": one.score.low,
                "high": one.score.high,
                "exits": one.exits,
            }
            for one in outcomes
        )
        name = evidence.name(run.method)
        title = f"Other rules of agreement, {benchmark_name(run.benchmark)}, {name}"
        axes = {"tokens": "output tokens for one document", "score": "score, %"}
        yield Figure(f"rules-{number}", title, "curve", run.benchmark, axes, data, name)


def _point(evidence: Evidence, run: Run) -> dict[str, Any] | None:
    found, score = cost(run), evidence.score(run)
    if found is None or score is None:
        return None
    return {
        "method": evidence.name(run.method),
        "mode": run.method.mode,
        "prompt": run.method.prompt,
        "score": score.value,
        "low": score.low,
        "high": score.high,
        "n": score.n,
        "small_tokens": found.small_tokens,
        "large_tokens": found.large_tokens,
        "tokens": found.tokens,
        "wall_s": run.wall_s / len(run.documents) if run.wall_s else None,
    }


def _bins(evidence: Evidence, run: Run) -> Iterator[dict[str, Any]]:
    tokens = [document.output_tokens for document in run.documents if document.output_tokens is not None]
    counts, limits = np.histogram(tokens, bins=[*BINS, np.inf])
    for count, low, high in zip(counts, limits, limits[1:], strict=False):
        if count:
            end = None if np.isinf(high) else int(high)
            yield {"method": evidence.name(run.method), "low": int(low), "high": end, "documents": int(count)}


def _flow(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the bands: from all documents to the exits, and through "disagree" to the later ones."""
    by_exit = {exit: [one for one in run.documents if one.exit == exit] for exit in EXITS["cascade"]}
    later = [document for exit in ("agree_think", "transfer") for document in by_exit[exit]]
    bands = [
        ("documents", "agree_short", by_exit["agree_short"]),
        ("documents", "disagree", later),
        ("disagree", "agree_think", by_exit["agree_think"]),
        ("disagree", "transfer", by_exit["transfer"]),
    ]
    for source, target, documents in bands:
        right = sum(is_right(document.score) for document in documents)
        yield {"source": source, "target": target, "documents": len(documents), "right": right}
