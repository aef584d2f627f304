"""What a report says first about each cascade: its score and its output tokens, against those of the other methods.

Score and output tokens are compared on the documents that both runs have. The large model comes first, with S and with
the thinking of the cascade, because it is what one would use instead; then Full RT, which always pays for both models.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run


class Claim(NamedTuple):
    """What a reader should know first about one cascade."""

    benchmark: str
    sentence: str
    """Its score and its output tokens."""
    more: str
    """One sentence for each other method, and what the brackets mean."""


def claims(evidence: Evidence) -> Iterator[Claim]:
    """Yield the claim of each cascade that has a score and token counts."""
    for run in evidence.of("cascade"):
        score, spent = evidence.score(run), evidence.cost(run, "tokens")
        if score is None or spent is None:
            continue
        others = (evidence.short(run, "large"), evidence.large_r(run), evidence.full_rt(run))
        compared = [text for other in others if (text := against(evidence, run, other))]
        sentence = (
            f"On {benchmark_name(run.benchmark)} (n = {score.n:,}), {evidence.name(run.method)} scores {score.shown()} "
            f"with {spent.mean():.1f} output tokens of both models per question."
        )
        yield Claim(run.benchmark, sentence, " ".join([*compared, "In brackets: 95% intervals."]))


def against(evidence: Evidence, run: Run, other: Run | None) -> str:
    """Return the difference of a run from another one in points and in output tokens as a sentence. Empty: they have no
    documents in common."""
    comparison = evidence.compare(run, other)
    if other is None or comparison is None:
        return ""
    documents = evidence.common(run, other)[0].index.unique()
    mine, theirs = evidence.cost(run, "tokens"), evidence.cost(other, "tokens")
    only = f" (n = {len(documents)})" if len(documents) < run.documents else ""
    text = f"Against {evidence.name(other.method)}{only}: {comparison.difference.shown(1, '+', ' points')}"
    if mine is None or theirs is None:
        return f"{text}."
    return f"{text}, with {ratio(mine[documents].mean(), theirs[documents].mean())}."


def ratio(tokens: float, others: float) -> str:
    """Return output tokens in comparison with those of another method, such as "86% fewer output tokens"."""
    if others <= 0:
        return "more output tokens"
    if tokens > 2 * others:
        return f"{tokens / others:.1f} times the output tokens"
    change = round(100 * (tokens / others - 1))
    if change == 0:
        return "as many output tokens"
    return f"{abs(change)}% {'more' if change > 0 else 'fewer'} output tokens"
