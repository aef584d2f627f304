"""The cascade with other rules of agreement, recomputed from traces.

A looser rule only ends a sample earlier, so the trace has every call that is left. A stricter rule needs calls that the
cascade did not make; they are those of Full RT on the same document, because greedy calls do not depend on the run.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lmms_eval_mai.paper.agreement import AgreementRules, Benchmark
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.estimates import accuracy
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import traced
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import CallCost, Document, Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table
from lmms_eval_mai.reports.scoring import score_of

SETTINGS: dict[str, tuple[AgreementRules, ...]] = {
    "infovqa_val": tuple(AgreementRules(anls_threshold=value / 100) for value in (50, 60, 70, 80, 85, 90, 95, 100)),
    "chartqa": (AgreementRules(chartqa_match="exact"), AgreementRules(chartqa_match="relaxed")),
}
"""Benchmark -> the rules to try."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cascade with another rule would have done."""

    rules: AgreementRules
    exits: dict[str, int]
    score: Estimate
    tokens: float
    """Output tokens of both models for one document."""
    is_run: bool
    """Whether these are the rules of the run itself."""


def rules_table(evidence: Evidence) -> Iterator[Table]:
    """Yield score and cost of the cascade with looser and stricter rules of agreement."""
    rows = [_row(evidence, run, outcome) for run, outcomes in curves(evidence) for outcome in outcomes]
    if rows:
        yield Table(
            key="rules",
            title="The cascade with other rules of agreement, recomputed from the traces",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("rule", "text"),
                Column("of the run", "text"),
                *(Column(exit, "count") for exit in EXITS["cascade"]),
                Column("score", digits=2),
                Column("tokens"),
            ),
            rows=tuple(rows),
            notes=(
                "Tokens: output tokens of both models for one document. A rule that is stricter than that of the run "
                "needs Full RT on the same documents, and the same greedy calls. Rules without them are left out.",
            ),
        )


def curves(evidence: Evidence) -> Iterator[tuple[Run, list[Outcome]]]:
    """Yield each cascade on a benchmark whose rule has a parameter, with what other rules would have done."""
    for run in traced(evidence):
        if run.benchmark in SETTINGS:
            # The thinking of Full RT has one stage, so it does not tell what a second stage would answer.
            full_rt = None if run.method.two_stage else evidence.get(run.benchmark, run.method.full_rt())
            others = {document.doc_id: document for document in full_rt.documents} if full_rt else {}
            found = [recompute(run, rules, others) for rules in SETTINGS[run.benchmark]]
            outcomes = [outcome for outcome in found if outcome is not None]
            if outcomes:
                yield run, outcomes


def recompute(run: Run, rules: AgreementRules, full_rt: dict[int, Document]) -> Outcome | None:
    """Return what the cascade would have done with these rules. None: calls are missing.

    `full_rt`: the documents of Full RT by number, empty if there is no such run.
    """
    benchmark = BENCHMARKS[run.benchmark]
    finished = [_finish(benchmark, document, rules, full_rt.get(document.doc_id)) for document in run.documents]
    if not finished or any(one is None for one in finished):
        return None
    found = [one for one in finished if one is not None]
    exits = Counter(str(document.exit) for document in found)
    estimate = accuracy(found)
    assert estimate is not None
    return Outcome(
        rules,
        {exit: exits[exit] for exit in EXITS["cascade"]},
        estimate,
        sum(document.output_tokens or 0 for document in found) / len(found),
        rules == run.rules,
    )


def _finish(
    benchmark: Benchmark, document: Document, rules: AgreementRules, full_rt: Document | None
) -> Document | None:
    """Return the document as the cascade with these rules would leave it. None: a call is missing."""
    first = document.verifications[0]
    short = [call for call in document.calls if call.stage == "short"]
    large_score = _large_score(benchmark, document)
    if _agree(benchmark, first.small, first.large, rules):
        return _left(document, "agree_short", large_score, short)
    if len(document.verifications) > 1:
        thought = document.verifications[1].small
        think = [one for one in document.calls if one.stage in ("think", "stage2")]
    elif full_rt is not None:
        thought, think = full_rt.thought, [one for one in full_rt.calls if one.stage == "think"]
    else:
        return None
    if _agree(benchmark, thought, first.large, rules):
        return _left(document, "agree_think", large_score, [*short, *think])
    end = document if document.exit == "transfer" else full_rt
    if end is None:
        return None
    transfer = [call for call in end.calls if call.stage in ("score", "transfer")]
    return _left(document, "transfer", end.score, [*short, *think, *transfer])


def _agree(benchmark: Benchmark, a: str | None, b: str | None, rules: AgreementRules) -> bool:
    return a is not None and b is not None and benchmark.agree(a, b, rules)


def _large_score(benchmark: Benchmark, document: Document) -> float | None:
    """Return the score of the large model's short answer."""
    if document.exit != "transfer":
        return document.score
    return score_of(benchmark.name, document.verifications[0].large, document.target)


def _left(document: Document, exit: str, score: float | None, calls: list[CallCost]) -> Document:
    tokens = sum(call.output_tokens for call in calls)
    return Document(document.doc_id, document.target, score, exit=exit, output_tokens=tokens, calls=tuple(calls))


def _row(evidence: Evidence, run: Run, outcome: Outcome) -> tuple[Cell, ...]:
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        rule_name(run.benchmark, outcome.rules),
        "yes" if outcome.is_run else None,
        *outcome.exits.values(),
        outcome.score,
        outcome.tokens,
    )


def rule_name(benchmark: str, rules: AgreementRules) -> str:
    """Return the argument that sets the rule of a benchmark."""
    if benchmark == "chartqa":
        return f"chartqa_match={rules.chartqa_match}"
    return f"anls_threshold={rules.anls_threshold:g}"
