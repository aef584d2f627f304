"""Table 9: sparse transfer by layer, beside full transfer and beside two controls that the paper lacks.

The controls transfer as many tokens as sparse transfer, chosen without attention: tokens drawn at random, and the last
tokens. If they are as good as sparse transfer, the attention does not matter.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmms_eval_mai import statistics
from lmms_eval_mai.statistics import Interval, PairedTest

CONTROLS = ("random", "last")
COUNTS = ("kept_tokens", "transferred_tokens", "prompt_tokens", "prefilled_tokens")


class Method(NamedTuple):
    """One way to answer: a column of Table 9, or a control."""

    name: str
    """`simple` (8B-S: no thinking), `full`, `sparse`, `random` or `last`."""
    layer: int | None = None
    """The layer that decides the number of tokens, and in `sparse` the tokens."""


SIMPLE, FULL = Method("simple"), Method("full")


@dataclass(frozen=True)
class Answer:
    """The answer to one document by one method, and its cost at the large model."""

    text: str
    kept_tokens: int
    """Tokens of the thinking that were kept: #T of Table 9."""
    transferred_tokens: int | None
    """Tokens of their text, counted again by the large model's tokenizer. None: not known."""
    prompt_tokens: int
    """Tokens of the prompt that was answered, image tokens included."""
    prefilled_tokens: int
    """The same, and the prompt of the call that scored the thinking, if there was one."""


class Scored(NamedTuple):
    """The scores of the answers of one method."""

    scores: list[float]
    """One number per document: the task's `score`, or its first metric."""
    metrics: Mapping[str, float]
    """The task's own metrics over all documents."""


Scorer = Callable[[Method, Mapping[int, str]], Scored]
"""Scores the answers of one method, by the number of the document."""


@dataclass(frozen=True)
class Comparison:
    """A paired test against another method, with the p value corrected for the number of layers."""

    other: Method
    test: PairedTest
    corrected_p: float


@dataclass(frozen=True)
class Row:
    """One method in Table 9."""

    method: Method
    score: Interval
    metrics: Mapping[str, float]
    tokens: Mapping[str, Interval]
    """A name in `COUNTS` -> its mean over documents."""
    comparisons: tuple[Comparison, ...]
    scores: tuple[float, ...]
    """The score of each document."""

    def record(self) -> dict[str, Any]:
        """Return the row as the fields of a CSV file."""
        found: dict[str, Any] = {"method": self.method.name, "layer": self.method.layer}
        found["documents"] = self.score.n
        found |= _fields("score", self.score)
        found |= dict(self.metrics)
        for name, interval in self.tokens.items():
            found |= _fields(name, interval)
        for one in self.comparisons:
            prefix = f"against_{one.other.name}"
            found |= {f"{prefix}_better": one.test.better, f"{prefix}_worse": one.test.worse}
            found |= {f"{prefix}_p": one.test.p, f"{prefix}_p_holm": one.corrected_p}
        return found


def methods(layers: Sequence[int]) -> list[Method]:
    """Return all methods of the table."""
    by_layer = [Method(name, layer) for name in ("sparse", *CONTROLS) for layer in layers]
    return [SIMPLE, FULL, *by_layer]


def rows(answers: Mapping[int, Mapping[Method, Answer]], layers: Sequence[int], score: Scorer) -> list[Row]:
    """Return the rows of the table. `answers`: those of each document, by its number; at least one."""
    scored = {
        method: score(method, {number: one[method].text for number, one in answers.items()})
        for method in methods(layers)
    }
    comparisons = _comparisons({method: one.scores for method, one in scored.items()}, layers)

    def mean(method: Method, field: str) -> Interval:
        counts = [getattr(one[method], field) for one in answers.values()]
        return statistics.mean([math.nan if count is None else count for count in counts])

    return [
        Row(
            method,
            statistics.mean_score(one.scores),
            one.metrics,
            {name: mean(method, name) for name in COUNTS},
            tuple(comparisons.get(method, ())),
            tuple(one.scores),
        )
        for method, one in scored.items()
    ]


def _comparisons(scores: Mapping[Method, Sequence[float]], layers: Sequence[int]) -> dict[Method, list[Comparison]]:
    """Compare sparse transfer with full transfer and with the controls of the same layer, the controls with full
    transfer, and full transfer with no thinking."""
    pairs: dict[Method, list[Comparison]] = {}

    def compare(first: list[Method], others: list[Method]) -> None:
        tests = [statistics.paired_test(scores[one], scores[other]) for one, other in zip(first, others, strict=True)]
        corrected = statistics.holm([test.p for test in tests])
        for one, other, test, p in zip(first, others, tests, corrected, strict=True):
            pairs.setdefault(one, []).append(Comparison(other, test, p))

    sparse = [Method("sparse", layer) for layer in layers]
    compare([FULL], [SIMPLE])
    compare(sparse, [FULL for _ in layers])
    for control in CONTROLS:
        controls = [Method(control, layer) for layer in layers]
        compare(sparse, controls)
        compare(controls, [FULL for _ in layers])
    return pairs


def _fields(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
