"""The claim of a cascade in one sentence: its score, its cost, and the difference from the expensive method."""

from collections.abc import Iterator
from dataclasses import dataclass

from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import large_short
from lmms_eval_mai.reports.more_tables.methods import cost
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Method, Run
from lmms_eval_mai.reports.report import Estimate


@dataclass(frozen=True, slots=True)
class Headline:
    """What a reader should know first about one cascade."""

    method: str
    """The cascade with its models."""
    claim: str
    against: tuple[str, ...]
    """One sentence for each other method that it is compared with."""


def headlines(evidence: Evidence) -> Iterator[Headline]:
    """Yield the claim of each cascade that has a score and token counts."""
    for run in evidence.of("cascade"):
        score, spent = evidence.score(run), cost(run)
        if score is None or spent is None:
            continue
        claim = (
            f"On {benchmark_name(run.benchmark)}, MAI scores {score.value:.1f}{_brackets(score)} with "
            f"{spent.tokens:.1f} output tokens per question"
        )
        found = list(_comparisons(evidence, run, spent.tokens))
        if found:
            name, share, difference = found[0]
            claim += f", {share} {name}; the score differs by {difference}"
        against = tuple(
            f"Against {name}: {share.rpartition(' ')[0]} tokens; {diff}." for name, share, diff in found[1:]
        )
        yield Headline(evidence.name(run.method), f"{claim}.", against)


def _comparisons(evidence: Evidence, run: Run, tokens: float) -> Iterator[tuple[str, str, str]]:
    """Yield name, share of the tokens and difference of the score for Full RT, the large model with the same thinking,
    and the large model with S, if their runs are there and have documents in common."""
    method = run.method
    large = Method("alone", method.model, "", method.variant, method.two_stage, method.alone("large", "S").options)
    others = {
        "Full RT": evidence.get(run.benchmark, method.full_rt()),
        evidence.name(large): evidence.get(run.benchmark, large),
    }
    short = large_short(evidence, run)
    if short is not None:
        others[evidence.name(short.method)] = short
    for name, other in others.items():
        comparison, spent = evidence.compare(run, other), cost(other) if other else None
        if comparison is not None and spent is not None:
            yield name, ratio(tokens, spent.tokens), f"{_signed(comparison.difference)}"


def ratio(tokens: float, others: float) -> str:
    """Return the tokens in comparison with those of another method, for example "86% fewer than"."""
    if others <= 0:
        return "more than"
    if tokens > 2 * others:
        return f"{tokens / others:.1f} times as many as"
    change = round(100 * (tokens / others - 1))
    if change == 0:
        return "as many as"
    return f"{abs(change)}% {'more' if change > 0 else 'fewer'} than"


def _brackets(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" (95% interval {estimate.low:.1f} to {estimate.high:.1f})"


def _signed(estimate: Estimate) -> str:
    text = f"{estimate.value:+.1f} points"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} (95% interval {estimate.low:+.1f} to {estimate.high:+.1f})"
