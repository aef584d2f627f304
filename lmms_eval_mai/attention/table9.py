"""Table 9: sparse transfer by layer, beside full transfer and beside two controls that the paper lacks.

The controls transfer as many tokens as sparse transfer, chosen without attention: tokens drawn at random, and the last
tokens. If they are as good as sparse transfer, the attention does not matter.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.attention.results import Record, fields, means

CONTROLS = ("random", "last")
METHODS = ("simple", "full", "sparse", *CONTROLS)
COUNTS = ("kept_tokens", "transferred_tokens", "prompt_tokens", "prefilled_tokens")
COMPARED = (("full", "simple"), *((name, "full") for name in ("sparse", *CONTROLS)), *(("sparse", c) for c in CONTROLS))
"""The methods that are compared on the same documents, those with layers layer by layer."""


@dataclass(frozen=True)
class Answer:
    """The answer to one document by one method, and its cost at the large model."""

    method: str
    """`simple` (8B-S: no thinking), `full`, `sparse`, `random` or `last`."""
    layer: int | None
    """The layer that decides the number of tokens, and in `sparse` the tokens."""
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


Scorer = Callable[[str, Mapping[int, str]], Scored]
"""Scores the answers of one method, by the number of the document."""


def rows(answers: Mapping[int, Sequence[Answer]], score: Scorer) -> tuple[list[Record], list[Record]]:
    """Return the rows of the table, one for each method and layer, and one row for each answer with its score.

    `answers`: those of each document, by its number; at least one document, and the same methods for all.
    """
    lines: dict[tuple[str, int | None], list[Record]] = {}
    for number, found in answers.items():
        for answer in sorted(found, key=lambda one: METHODS.index(one.method)):
            lines.setdefault((answer.method, answer.layer), []).append({"doc_id": number, **asdict(answer)})
    table: dict[tuple[str, int | None], Record] = {}
    scores = {}
    for (method, layer), of_method in lines.items():
        scored = score(method, {line["doc_id"]: line["text"] for line in of_method})
        scores[method, layer] = scored.scores
        for line, value in zip(of_method, scored.scores, strict=True):
            line["score"] = value
        row = {**scored.metrics, "method": method, "layer": layer, "documents": len(of_method)}
        row |= fields("score", statistics.mean_score(scored.scores))
        row |= means({name: [line[name] for line in of_method] for name in COUNTS})
        table[method, layer] = row
    for method, other in COMPARED:
        layers = [(layer, layer if other in CONTROLS else None) for name, layer in lines if name == method]
        tests: list[Record] = []
        for layer, of_other in layers:
            difference = np.subtract(scores[method, layer], scores[other, of_other])
            better, worse = int((difference > 0).sum()), int((difference < 0).sum())
            tests.append({"better": better, "worse": worse, "p": statistics.mcnemar(better, worse)})
        corrected = statistics.holm([test["p"] for test in tests])
        for (layer, _), test, p in zip(layers, tests, corrected, strict=True):
            numbers = {**test, "p_holm": p}
            table[method, layer] |= {f"against_{other}_{name}": value for name, value in numbers.items()}
    return list(table.values()), [line for of_method in lines.values() for line in of_method]


def text(table: Sequence[Record]) -> str:
    """Return the rows of the table for the terminal."""
    columns = ["method", "layer", "score", "score_low", "score_high", "kept_tokens", "prefilled_tokens"]
    p = {f"against_{name}_p_holm": f"p against {name}" for name in ("full", *CONTROLS)}
    frame = pd.DataFrame([row | {"layer": row["layer"] or ""} for row in table], columns=[*columns, *p])
    shown = frame.rename(columns=p).to_string(index=False, float_format="{:.3f}".format, na_rep="")
    return f"Table 9, {table[0]['documents']:,} documents\n{shown}"


def random_tokens(tokens: int, kept: int, seed: str) -> list[int]:
    """Return `kept` of the positions 0..tokens-1, drawn with a seed, in ascending order.

    With the same seed, a larger number of positions has the smaller one in it. So the control of two layers differs
    only by the number of tokens.
    """
    positions = list(range(tokens))
    random.Random(seed).shuffle(positions)
    return sorted(positions[:kept])
