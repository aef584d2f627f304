"""The data of the figures: score over cost, the flow of documents through the exits, and other rules of agreement."""

from collections.abc import Iterator
from typing import Any

from lmms_eval_mai.paper.sample import exits_of
from lmms_eval_mai.reports.cascade_tables import RIGHT
from lmms_eval_mai.reports.evidence import COSTS, Evidence
from lmms_eval_mai.reports.method_tables import comparisons, spent
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.probabilities import reliability
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Figure
from lmms_eval_mai.reports.rules import curves


def figures(evidence: Evidence) -> Iterator[Figure]:
    """Yield all figures that the runs allow."""
    dominated = _dominated(evidence)
    for benchmark in evidence.benchmarks():
        points = tuple(filter(None, (_point(evidence, run, dominated) for run in evidence.of_benchmark(benchmark))))
        if points:
            title = f"Score over cost, {benchmark_name(benchmark)}"
            yield Figure(f"points-{benchmark}", title, "points", benchmark, points)
    for number, run in enumerate(evidence.traced()):
        name = evidence.name(run.method)
        title = f"Flow of documents, {benchmark_name(run.benchmark)}, {name}"
        yield Figure(f"flow-{number}", title, "flow", run.benchmark, tuple(_flow(run)), name)
    for number, (run, outcomes) in enumerate(curves(evidence)):
        data = [
            _curve_point(one.rule.name(run.benchmark), one.rule.verify, one.tokens, one.score, one.is_run)
            for one in outcomes
        ]
        for other in filter(None, (evidence.short(run, "large"), evidence.large_r(run), evidence.full_rt(run))):
            cost, score = evidence.cost(other, "tokens"), evidence.accuracy(other, other.samples)
            if cost is not None and score is not None:
                data.append(_curve_point(evidence.name(other.method), None, float(cost.mean()), score, False))
        name = evidence.name(run.method)
        title = f"Other rules of verification, {benchmark_name(run.benchmark)}, {name}"
        yield Figure(f"rules-{number}", title, "curve", run.benchmark, tuple(data), name)
    for number, (run, bins) in enumerate(reliability(evidence)):
        name = evidence.name(run.method)
        title = f"Reliability of the probability, {benchmark_name(run.benchmark)}, {name}"
        shares = [{"probability": one.probability, "n": one.n, **_scored(one.right)} for one in bins]
        yield Figure(f"reliability-{number}", title, "reliability", run.benchmark, tuple(shares), name)


def _point(evidence: Evidence, run: Run, dominated: dict[tuple[Run, str], str]) -> dict[str, Any] | None:
    found, score = spent(evidence, run), evidence.score(run)
    if found["tokens"] is None or score is None:
        return None
    named = {"method": evidence.name(run.method), "mode": run.method.mode, "prompt": run.method.prompt}
    return {
        **named,
        "score": score.value,
        **{name: getattr(score, name) for name in ("low", "high", "n")},
        **{name: found[name] for name in ("small_tokens", "large_tokens", "tokens", "compute", "seconds", "wall_s")},
        "dominated": {kind: dominated.get((run, kind)) for kind in COSTS},
    }


def _curve_point(rule: str, verify: str | None, tokens: float, score: Estimate, of_the_run: bool) -> dict[str, Any]:
    """Return a point of a curve. `verify`: None for another method beside the curves."""
    named = {"rule": rule, "verify": verify, "of_the_run": of_the_run, "tokens": tokens}
    return {**named, **_scored(score)}


def _scored(score: Estimate) -> dict[str, Any]:
    return {"score": score.value, "low": score.low, "high": score.high}


def _dominated(evidence: Evidence) -> dict[tuple[Run, str], str]:
    """Return, for runs and kinds of cost, a method that costs at most as much and is better for sure: the interval of
    the paired difference is on one side of 0. Only cascades are compared with other methods."""
    found: dict[tuple[Run, str], str] = {}
    for run, other, comparison in comparisons(evidence):
        low, high = comparison.difference.low, comparison.difference.high
        if low is None or high is None or low <= 0 <= high:
            continue
        better, worse = (run, other) if low > 0 else (other, run)
        for kind in COSTS:
            paid, cost = evidence.cost(better, kind), evidence.cost(worse, kind)
            if paid is not None and cost is not None and paid.mean() <= cost.mean():
                found.setdefault((worse, kind), evidence.name(better.method))
    return found


def _flow(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the bands: from all documents to the exits, and through "disagree" to the later ones."""
    samples = run.samples[run.samples.repeat == 0]  # figures count documents
    exits = samples.exit
    first, *later = exits_of("cascade", run.method.verify)
    bands = [
        ("documents", first, exits == first),
        ("documents", "disagree", exits.isin(later)),
        *(("disagree", exit, exits == exit) for exit in later),
    ]
    for source, target, chosen in bands:
        right = int((samples.score[chosen] >= RIGHT).sum())
        yield {"source": source, "target": target, "documents": int(chosen.sum()), "right": right}
