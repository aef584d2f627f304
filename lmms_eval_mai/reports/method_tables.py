"""All methods on one benchmark: score and cost, MAI against each of them, and against routers of the same cost."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.evidence import COSTS, OF_F1, Evidence, of_comparison, of_run
from lmms_eval_mai.reports.methods import MODES
from lmms_eval_mai.reports.metrics import Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table
from lmms_eval_mai.statistics import Array

Spent = dict[str, float | None]
"""What a method spends on one document on average: each of `COSTS`, `small_tokens`, `large_tokens`, `call_s` and
`wall_s`. None: not known."""


def spent(evidence: Evidence, run: Run) -> Spent:
    """Return the averages of a run. Seconds of calls are not known if a call is shared."""
    found: Spent = {kind: None if (cost := evidence.cost(run, kind)) is None else float(cost.mean()) for kind in COSTS}
    calls, answers = run.calls, len(run.samples)
    found["wall_s"] = run.wall_s / run.documents if run.wall_s and answers else None
    if found["tokens"] is None or not len(calls) or len(calls.groupby(["doc_id", "repeat"])) != answers:
        of_calls = ("small_tokens", "large_tokens", "call_s", "compute", "seconds")
        return found | dict.fromkeys(of_calls)  # the samples have no traces
    sides = calls.groupby("side").output_tokens.sum()
    found |= {f"{side}_tokens": float(sides.get(side, 0) / answers) for side in SIDES}
    return found | {"call_s": None if calls.seconds.isna().any() else float(calls.seconds.sum() / answers)}


def method_table(evidence: Evidence) -> Iterator[Table]:
    """Yield score and cost of every method."""
    rows = [(run, spent(evidence, run)) for name in evidence.benchmarks() for run in evidence.of_benchmark(name)]
    unknown = [title for kind, title in COSTS.items() if kind != "tokens" and not any(row[1][kind] for row in rows)]

    def right_per(kind: str, unit: int, row: tuple[Run, Spent]) -> float | None:
        """Return the sum of the scores of one answer to each document, for each unit of a cost."""
        run, cost = row[0], row[1][kind]
        right = float(run.samples.score.groupby(level=0).mean().sum())
        return unit * right / (cost * run.documents) if cost else None

    share = evidence.share
    columns: list[Of[tuple[Run, Spent]]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row[0].benchmark)),
        Of("method", "text", 0, lambda row: evidence.name(row[0].method) + " (inside a cascade)" * row[0].derived),
        Of("n", "count", 0, lambda row: row[0].documents),
        Of("score", "percent", 1, lambda row: evidence.score(row[0])),
        Of("small output tokens", "number", 1, lambda row: row[1]["small_tokens"]),
        Of("large output tokens", "number", 1, lambda row: row[1]["large_tokens"]),
        Of("output tokens", "number", 1, lambda row: row[1]["tokens"]),
        Of("right per 1,000 output tokens", "number", 2, partial(right_per, "tokens", 1000)),
        Of(COSTS["compute"], "number", 3, lambda row: row[1]["compute"]),
        Of(COSTS["seconds"], "number", 3, lambda row: row[1]["seconds"]),
        Of("call seconds", "number", 3, lambda row: row[1]["call_s"]),
        Of("wall seconds", "number", 3, lambda row: row[1]["wall_s"]),
        Of("right per wall second", "number", 2, partial(right_per, "wall_s", 1)),
        Of("unreadable, %", "percent", 2, lambda row: share(row[0], row[0].samples.readable.dropna().eq(False))),
        Of("cut off, %", "percent", 2, lambda row: share(row[0], row[0].calls.groupby("doc_id").cut_off.any())),
    ]
    return table(
        "methods",
        "Score and cost of every method",
        [one for one in columns if one.title not in unknown],
        rows,
        (
            "Tokens, compute and seconds are averages for one document. Output tokens of both models are added one to "
            "one, although a token of the large model costs more; compute and profile seconds take this into account.",
            "Compute: 2 operations for each token and each parameter that works on it, with the prefill of prompts "
            "that are not cached and with the vision tower, from the configuration of the checkpoints. Attention "
            "between tokens is not counted. Profile seconds: one call after another, by profiles of the models "
            "(--profile).",
            "Call seconds include the wait in the engine's queue, and calls overlap. Wall seconds are the measured "
            "time of the task, divided by its documents; tasks of one command share its time. Compare seconds only on "
            "the same machine and the same engine. A run has no seconds if it shares calls with other runs.",
            "Right: the sum of the scores. An unreadable answer is wrong. Cut off: a limit ended a call of the "
            "document.",
            ("MMMU", "On MMMU, lmms-eval's scorer guesses an option in place of an unreadable answer."),
        ),
    )


# --- MAI against the others ---


Against = tuple[Run, Run, Comparison]
"""A cascade, another method, and their comparison."""


def comparisons(evidence: Evidence) -> Iterator[Against]:
    """Yield the comparison of each cascade with every other method of its models. The p values of one cascade are
    adjusted for their number (Holm)."""
    done: set[Run] = set()
    for run in evidence.of("cascade"):
        done.add(run)  # two cascades are compared once
        others = [other for other in evidence.of_benchmark(run.benchmark) if other not in done]
        found = {other: evidence.compare(run, other) for other in others if is_comparable(run, other)}
        compared = {other: comparison for other, comparison in found.items() if comparison is not None}
        adjusted = metrics.adjusted(list(compared.values()))
        yield from ((run, other, comparison) for other, comparison in zip(compared, adjusted, strict=True))


def comparison_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against every other method on the same documents."""
    compared = {"n": "n", "first": "MAI", "second": "other", "difference": "difference, points"}
    compared |= {"only_first": "only MAI right", "only_second": "only other right", "p": "p", "adjusted": "p, adjusted"}
    columns: list[Of[Against]] = [
        *of_run(evidence, lambda row: row[0], "cascade"),
        Of("against", "text", 0, lambda row: evidence.name(row[1].method)),
        *of_comparison(lambda row: row[2], **compared),
    ]
    return table(
        "mai-against-others",
        "MAI against every other method, on the same documents",
        columns,
        comparisons(evidence),
        (
            "The difference is paired, on the same documents. p is of this difference: the share of exchanges of both "
            "methods' answers with a difference at least as large. Where each document counts by itself and is right "
            "or wrong, it is McNemar's exact test. The adjusted p (Holm) takes the number of methods into account with "
            "which the cascade is compared.",
            OF_F1,
        ),
    )


def is_comparable(run: Run, other: Run) -> bool:
    """Return whether another run has models of this cascade only, or is not one of `mai_cascade`."""
    return not other.ours or {other.method.model, other.method.small} <= {run.method.model, run.method.small, ""}


# --- repeated runs ---


def repeats_table(evidence: Evidence) -> Iterator[Table]:
    """Yield the scores of each repeat of a method: of several runs, or of `-n`."""
    runs = [run for mode in MODES for run in evidence.of(mode) if run.samples.repeat.max() > 0 and not run.derived]

    def scores(run: Run) -> list[float]:
        """Return the score of each repeat."""
        repeats = [samples for _, samples in run.samples.groupby("repeat")]
        found = [metrics.score(samples, run.benchmark, evidence.clusters(run)) for samples in repeats]
        return [one.value for one in found if one is not None]

    def unstable(run: Run) -> Estimate | None:
        return evidence.share(run, run.samples.score.groupby(level=0).nunique() > 1)

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("n", "count", 0, lambda run: run.documents),
        Of("answers per document", "count", 0, lambda run: len(scores(run))),
        Of("score", "percent", 2, evidence.score),
        Of("lowest", "percent", 2, lambda run: min(scores(run))),
        Of("highest", "percent", 2, lambda run: max(scores(run))),
        Of("standard deviation between repeats", "percent", 2, lambda run: float(np.std(scores(run), ddof=1))),
        Of("documents with different scores, %", "percent", 1, unstable),
    ]
    return table(
        "repeats",
        "Methods with several answers to each document",
        columns,
        runs,
        (
            "All tables use the mean over the answers to a document. Its interval contains the variance between the "
            "answers, because documents are resampled with their answers.",
        ),
    )


# --- routers ---


Router = dict[str, Any]
"""A cascade against a router that chooses between two methods at random, and against the oracle."""


def router_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against a router that chooses at random, for each kind of cost, and against the oracle."""
    columns: list[Of[Router]] = [
        *of_run(evidence, lambda row: row["runs"][0]),
        Of("cheap", "text", 0, lambda row: evidence.name(row["runs"][1].method)),
        Of("expensive", "text", 0, lambda row: evidence.name(row["runs"][2].method)),
        Of("of the same", "text", 0, lambda row: COSTS[row["kind"]]),
        Of("n", "count", 0, lambda row: row["n"]),
        Of("cost", "number", 3, lambda row: row["cost"]),
        Of("random: expensive, %", "number", 1, lambda row: row["share"]),
        Of("MAI", "percent", 1, lambda row: row["mai"]),
        Of("random", "percent", 1, lambda row: row["random"]),
        Of("MAI - random, points", "percent", 2, lambda row: row["difference"]),
        Of("oracle", "percent", 1, lambda row: row["oracle"]),
        Of("oracle cost", "number", 3, lambda row: row["oracle_cost"]),
    ]
    return table(
        "routers",
        "MAI against a random router of the same cost, and against the oracle",
        columns,
        [row for run in evidence.traced() for row in _routers(evidence, run)],
        (
            "Scores are means over documents in percent. The random router takes the expensive method for a "
            "random share of the documents, so that it has the cost of MAI. The oracle knows the scores: it takes the "
            "expensive method only for documents on which that has a better score. If MAI costs less than the cheap "
            "method or more than the expensive one, there is no random router of its cost.",
            "Output tokens of both models are added one to one, so a comparison by tokens favours a method that "
            "decodes with the large model. The intervals contain the uncertainty of scores and costs.",
        ),
    )


def _routers(evidence: Evidence, run: Run) -> Iterator[Router]:
    cheap = evidence.short(run, "large")
    for expensive in (evidence.full_rt(run), evidence.large_r(run)):
        if cheap is not None and expensive is not None and cheap is not expensive:
            found = (_router(evidence, (run, cheap, expensive), kind) for kind in COSTS)
            yield from (row for row in found if row is not None)


def _router(evidence: Evidence, runs: tuple[Run, Run, Run], kind: str) -> Router | None:
    samples = evidence.common(*runs)
    costs = [evidence.cost(run, kind) for run in runs]
    if samples[0].empty or any(cost is None for cost in costs):
        return None
    scores = [one.score.groupby(level=0).mean() for one in samples]
    documents = scores[0].index
    paid = [cost.loc[documents] for cost in costs if cost is not None]
    parts = np.column_stack([*scores, *paid, np.ones(len(documents))])
    share = float(_share(parts.sum(axis=0)))
    random = difference = None
    if 0 <= share <= 1:
        random = 100 * float((1 - share) * scores[1].mean() + share * scores[2].mean())
        places = metrics.places_of(documents, evidence.clusters(runs[0]))
        difference = metrics.estimate(metrics.difference(parts, _gain, places))
    return {
        "runs": runs,
        "kind": kind,
        "n": len(documents),
        "cost": float(paid[0].mean()),
        "share": 100 * share if 0 <= share <= 1 else None,
        "mai": 100 * float(scores[0].mean()),
        "random": random,
        "difference": difference,
        "oracle": 100 * float(pd.concat(scores[1:], axis=1).max(axis=1).mean()),
        "oracle_cost": float(paid[2].where(scores[2] > scores[1], paid[1]).mean()),
    }


def _share(sums: Array) -> Array:
    """Return how often a random router takes the expensive method, from the sums of three scores and three costs."""
    _, _, _, mai, low, high, _ = np.moveaxis(sums, -1, 0)
    found: Array = np.divide(mai - low, high - low, out=np.full_like(mai, -1.0), where=high != low)
    return found


def _gain(sums: Array) -> Array:
    """Return the mean score of MAI minus that of the random router of the same cost."""
    share = _share(sums)
    mai, low, high, _, _, _, number = np.moveaxis(sums, -1, 0)
    found: Array = (mai - (1 - share) * low - share * high) / number
    return found
