"""What a report says first: which methods no other one beats in both score and price.

Scores are equal if the paired test does not tell them apart, and prices within 10%. A method beats another one if it is
better in one of them, and better or equal in the other. The price of a document is its seconds if all runs have made
their own calls with the same engines, else the output tokens of the large model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.exits import at_exits, scores_there
from lmms_eval_mai.analysis.tables.summary import comparisons, spent
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import MAI

EQUAL_PRICE = 1.1
TOLD_APART = 0.05
WIDEST = 10.0
"""Points on each side of a difference in whose interval two scores may count as equal. A wider one says nothing."""
FEWEST = 20
"""Documents, or groups of documents that share images, below which an interval says nothing."""


@dataclass(frozen=True, eq=False)
class Priced:
    """A method with what decides about it."""

    name: str
    score: float
    price: float
    unit: str = "tokens"
    differences: dict[str, float] = field(default_factory=dict)
    """Another method -> the score minus that of the other one. 0: they are not told apart."""

    def beats(self, other: "Priced") -> bool:
        better = self.differences.get(other.name, -1.0)
        is_cheaper, is_dearer = (a * EQUAL_PRICE < b for a, b in ((self.price, other.price), (other.price, self.price)))
        return better >= 0 and not is_dearer and (better > 0 or is_cheaper)

    def __str__(self) -> str:
        price = f"{self.price:.1f}" if self.unit == "tokens" else f"{self.price:.3f}"
        return f"{self.name} ({self.score:.1f}% for {price} {self.unit})"


def unbeaten(methods: Sequence[Priced]) -> list[Priced]:
    """Return the methods that no other one beats, the cheapest first."""
    found = [one for one in methods if not any(other.beats(one) for other in methods if other is not one)]
    return sorted(found, key=lambda one: one.price)


def verdict(runs: Runs) -> tuple[list[str], list[str]]:
    """Return what to say about each benchmark on which a method may stop early; and of each about which nothing can be
    said, why."""
    said, missing = [], []
    for benchmark in runs.benchmarks():
        if stopping := runs.stopping(benchmark):
            sentence, lack = _about(runs, benchmark, stopping)
            said += [sentence] * (not lack)
            why = f"{benchmark_name(benchmark)}: the report does not say which method pays, because {lack}."
            missing += [why] * bool(lack)
    return said, missing


def _about(runs: Runs, benchmark: str, stopping: Sequence[FinishedRun]) -> tuple[str, str]:
    """Return what to say about a benchmark; or an empty text, and what is missing. `stopping`: the methods that may
    stop early."""
    beside, documents = runs.baselines(stopping[0]), stopping[0].samples.index
    every = [run for run in runs.select(benchmark=benchmark) if run.samples.index.equals(documents)]
    if not runs.roles:
        return "", "the runs have several pairs of models, or one model on both sides"
    if beside["large S"] not in every or not {beside["Full RT"], beside["large R"]}.intersection(every):
        return "", "large S, or both Full RT and large R, are missing on these documents"
    found, unit, about_price = prices(every)
    methods = [
        Priced(runs.name(run.setup), score.value, price, unit)
        for run, price in found.items()
        if (score := runs.score(run))
    ]
    doubtful = _compare(runs, benchmark, {one.name: one for one in methods})
    best = unbeaten(methods)
    named = [one for one in best if one.price] or best  # a small model alone has no tokens of the large one
    if not named:
        return "", "no method has both a score and a price"
    if doubtful & {one.name for one in named}:
        return "", "too few documents decide"
    baselines = [other for name, other in beside.items() if other and not name.startswith("small")]
    told = {runs.name(run.setup) for run in (*stopping, *baselines)}
    others = [one for one in methods if one.name in told and one not in best]
    best_first = _about_best(benchmark, len(documents), named, about_price)
    return " ".join([best_first, *_about_others(named, others), *_about_loss(runs, stopping)]), ""


def prices(runs: Sequence[FinishedRun]) -> tuple[dict[FinishedRun, float], str, str]:
    """Return what a document costs in each run, its unit, and what it is. A replay has no seconds."""
    seconds = {run: spent(run)["wall_s"] if run.ours else None for run in runs}
    is_one_machine = all(len({run.engines[side] for run in runs if side in run.engines}) <= 1 for side in SIDES)
    if is_one_machine and None not in seconds.values():
        at_once = [_at_once(run) for run in runs]
        if max(at_once) <= 2 * min(at_once):
            known = {run: price for run, price in seconds.items() if price is not None}
            return known, "s", f"seconds for a document, up to {max(at_once)} at a time"
    tokens = {run: spent(run)["large_tokens"] for run in runs}
    known = {run: price for run, price in tokens.items() if price is not None}
    return known, "tokens", "output tokens of the large model for a document"


def _at_once(run: FinishedRun) -> int:
    """Return how many documents were open at the same time."""
    calls = run.calls.assign(end=run.calls.started_at + run.calls.seconds).groupby("doc_id")
    changes = pd.concat([pd.Series(-1, calls.end.max()), pd.Series(1, calls.started_at.min())])
    return int(changes.sort_index(kind="stable").cumsum().max())


def _compare(runs: Runs, benchmark: str, methods: Mapping[str, Priced]) -> set[str]:
    """Set the differences of the methods. Returns those of which a difference is not told apart, but may be large."""
    doubtful = set()
    for row in comparisons(runs, benchmark):
        first, second = (methods.get(runs.name(run.setup)) for run in (row.run, row.other))
        if first and second:
            difference = row.comparison.difference
            value = difference.value if row.adjusted_p < TOLD_APART else 0.0
            first.differences[second.name], second.differences[first.name] = value, -value
            low, high = difference.ends
            if not value and (row.comparison.size < FEWEST or high - low > 2 * WIDEST):
                doubtful |= {first.name, second.name}
    return doubtful


def _about_best(benchmark: str, number: int, best: Sequence[Priced], about_price: str) -> str:
    where = f"On {benchmark_name(benchmark)} ({number:,} documents)"
    return (
        f"{where}, no method beats {_listed(best, 'or')}: none is as good for less, or better for no more. "
        f"Price: {about_price}."
    )


def _about_others(best: Sequence[Priced], others: Sequence[Priced]) -> Iterator[str]:
    """Yield why the best methods beat the others: by how much, or if no score is better, at what price."""

    def beater(other: Priced) -> Priced | None:
        found = (one for one in best if one.beats(other))
        return max(found, key=lambda one: (one.differences[other.name], one.score), default=None)

    for one in best:
        beaten = [other for other in others if beater(other) is one]
        name = one.name[0].upper() + one.name[1:]
        if equal := [other for other in beaten if not one.differences[other.name]]:
            yield f"{name} costs less than {_listed(equal)}, and the scores are not told apart."
        if better := [other for other in beaten if other not in equal]:
            shown = [f"{one.differences[other.name]:.1f} points better than {other}" for other in better]
            costs = "less" if all(one.price * EQUAL_PRICE < other.price for other in better) else "no more"
            yield f"{name} is {_listed(shown)}, for {costs}."


def _about_loss(runs: Runs, stopping: Sequence[FinishedRun]) -> Iterator[str]:
    """Yield at which exit MAI loses most against large R, or else Full RT: one with a score for all its documents."""
    mai = next((run for run in stopping if run.setup.method == MAI), None)
    rows = [row for row in at_exits(runs, mai) if len(row.samples)] if mai else []
    for name in ("large R", "Full RT"):
        there = [scores for row in rows if (scores := scores_there(row, name)) is not None]
        if not there or any(scores.isna().any() for scores in there):
            continue
        losses = [(scores - row.samples.score).sum() for scores, row in zip(there, rows, strict=True)]
        worst = losses.index(max(losses))
        row, score = rows[worst], 100 * rows[worst].samples.score.mean()
        if losses[worst] > 0:
            yield (
                f"{runs.name(row.run.setup)} loses most at the exit {row.exit} ({len(row.samples):,} documents): "
                f"{score:.1f}%, {name} {100 * there[worst].mean():.1f}%."
            )
        return


def _listed(things: Sequence[Any], last: str = "and") -> str:
    *first, end = map(str, things)
    return f"{', '.join(first)} {last} {end}" if first else end
