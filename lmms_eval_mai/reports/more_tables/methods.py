"""All methods on one benchmark: score and cost, MAI against each of them, a random router and the oracle, and where MAI
loses to the large model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmms_eval_mai.engines.base import Side
from lmms_eval_mai.reports import statistics
from lmms_eval_mai.reports.estimates import compare, percent
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import large_short, traced
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Document, Method, Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table

MODES = ("alone", "transfer", "cascade")


@dataclass(frozen=True, slots=True)
class Cost:
    """The average cost of a method for one document."""

    tokens: float
    """Output tokens of all models."""
    small_tokens: float | None = None
    """None: the samples have no traces."""
    large_tokens: float | None = None
    call_seconds: float | None = None


def cost(run: Run) -> Cost | None:
    """Return the average cost of a run. None: its samples have no token counts."""
    counts = [document.output_tokens for document in run.documents if document.output_tokens is not None]
    number = len(run.documents)
    if not counts or len(counts) < number:
        return None
    if not all(document.calls for document in run.documents):
        return Cost(sum(counts) / number)

    def tokens(side: Side) -> float:
        return sum(call.output_tokens for one in run.documents for call in one.calls if call.side == side) / number

    seconds = sum(call.seconds for one in run.documents for call in one.calls) / number
    return Cost(sum(counts) / number, tokens("small"), tokens("large"), seconds)


def method_table(evidence: Evidence) -> Iterator[Table]:
    """Yield score and cost of every method."""
    rows = []
    for benchmark in evidence.benchmarks():
        rows += [_method_row(evidence, run) for mode in MODES for run in evidence.of(mode, benchmark)]
    yield Table(
        key="methods",
        title="Score and cost of every method",
        columns=(
            Column("benchmark", "text"),
            Column("method", "text"),
            Column("n", "count"),
            Column("score"),
            Column("small tokens"),
            Column("large tokens"),
            Column("all tokens"),
            Column("right per 1,000 tokens", digits=2),
            Column("call seconds", digits=3),
            Column("wall seconds", digits=3),
            Column("right per wall second", digits=2),
        ),
        rows=tuple(rows),
        notes=(
            "Tokens and seconds are averages for one document. Tokens are output tokens. Call seconds include the wait "
            "in the engine's queue, and calls overlap; the wall time is that of the whole run divided by its "
            "documents. Right: the sum of the scores. Compare seconds only on the same machine and the same engine.",
        ),
    )


def comparison_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against every other method on the same documents."""
    rows = []
    done: set[int] = set()
    for run in evidence.of("cascade"):
        done.add(id(run))  # two cascades are compared once
        for mode in MODES:
            for other in evidence.of(mode, run.benchmark):
                if id(other) in done or not _is_comparable(run, other):
                    continue
                comparison = evidence.compare(run, other)
                if comparison is not None:
                    rows.append(
                        (
                            benchmark_name(run.benchmark),
                            evidence.name(run.method),
                            evidence.name(other.method),
                            comparison.n,
                            comparison.first,
                            comparison.second,
                            comparison.difference,
                            comparison.only_first,
                            comparison.only_second,
                            comparison.p,
                        )
                    )
    if rows:
        yield Table(
            key="mai-against-others",
            title="MAI against every other method, on the same documents",
            columns=(
                Column("benchmark", "text"),
                Column("cascade", "text"),
                Column("against", "text"),
                Column("n", "count"),
                Column("MAI"),
                Column("other"),
                Column("difference, points", digits=2),
                Column("only MAI right", "count"),
                Column("only other right", "count"),
                Column("p", "p"),
            ),
            rows=tuple(rows),
            notes=(
                "The difference has a paired bootstrap interval. p is McNemar's exact test; it is missing if scores "
                "are not just right or wrong (ANLS). POPE: the difference is that of F1, and p is about accuracy.",
            ),
        )


def router_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against a router that chooses at random, at the same cost, and against the oracle."""
    rows = [row for run in traced(evidence) for row in _router_rows(evidence, run)]
    if rows:
        yield Table(
            key="routers",
            title="MAI against a random router of the same cost, and against the oracle",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("cheap", "text"),
                Column("expensive", "text"),
                Column("n", "count"),
                Column("tokens"),
                Column("random: expensive, %"),
                Column("MAI"),
                Column("random"),
                Column("MAI - random, points", digits=2),
                Column("oracle"),
                Column("oracle tokens"),
            ),
            rows=tuple(rows),
            notes=(
                "Mean scores in percent, on POPE and MMBench too. The random router takes the expensive method for a "
                "random share of the documents, so that it needs MAI's output tokens. The oracle knows the scores: it "
                "takes the expensive method only for documents on which that has a better score. If MAI needs fewer "
                "tokens than the cheap method or more than the expensive one, there is no random router of its cost.",
            ),
        )


def kinds_table(evidence: Evidence) -> Iterator[Table]:
    """Yield MAI against the large model with the Simple prompt by kind of question, the worst kinds first."""
    rows = [row for run in traced(evidence) for row in _kind_rows(evidence, run)]
    if rows:
        yield Table(
            key="kinds",
            title="MAI against the large model's short answers, by kind of question",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("kind", "text"),
                Column("n", "count"),
                Column("MAI"),
                Column("large S"),
                Column("difference, points"),
                Column("won", "count"),
                Column("lost", "count"),
                Column("p", "p"),
                Column("p, adjusted", "p"),
            ),
            rows=tuple(rows),
            notes=(
                "The worst kinds are first. Kinds are those of the benchmark (MMMU: subject, MMBench: category, "
                "ChartQA: human or augmented), else the form of the gold answer. Mean scores in percent. The adjusted "
                "p (Benjamini and Hochberg) takes the number of kinds into account.",
            ),
        )


def _is_comparable(run: Run, other: Run) -> bool:
    """Return whether another run has models of this cascade only, or is not one of `mai_cascade`."""
    return not other.ours or {other.method.model, other.method.small} <= {run.method.model, run.method.small, ""}


def _method_row(evidence: Evidence, run: Run) -> tuple[Cell, ...]:
    spent = cost(run)
    score = evidence.score(run)
    right = sum(document.score or 0.0 for document in run.documents)
    number = len(run.documents)
    wall = run.wall_s if run.wall_s and number else None
    tokens = spent.tokens * number if spent else 0
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method) + (" (inside a cascade)" if run.derived else ""),
        number or run.number,
        score,
        spent.small_tokens if spent else None,
        spent.large_tokens if spent else None,
        spent.tokens if spent else None,
        1000 * right / tokens if tokens else None,
        spent.call_seconds if spent else None,
        wall / number if wall else None,
        right / wall if wall else None,
    )


def _router_rows(evidence: Evidence, run: Run) -> Iterator[tuple[Cell, ...]]:
    cheap = large_short(evidence, run)
    method = run.method
    large_r = Method("alone", method.model, "", method.variant, False, method.alone("large", "S").options)
    for expensive in (evidence.get(run.benchmark, method.full_rt()), evidence.get(run.benchmark, large_r)):
        if cheap is not None and expensive is not None and cheap is not expensive:
            row = _router_row(evidence, run, cheap, expensive)
            if row is not None:
                yield row


def _router_row(evidence: Evidence, run: Run, cheap: Run, expensive: Run) -> tuple[Cell, ...] | None:
    wanted = set.intersection(
        *({(one.doc_id, one.target) for one in each.documents} for each in (run, cheap, expensive))
    )
    mai, low, high = (
        [one for one in each.documents if (one.doc_id, one.target) in wanted] for each in (run, cheap, expensive)
    )
    known = all(None not in (one.output_tokens, one.score) for each in (mai, low, high) for one in each)
    if not mai or not known:
        return None
    scores = [np.array([one.score or 0.0 for one in each]) for each in (mai, low, high)]
    tokens = [np.array([one.output_tokens for one in each], dtype=float) for each in (mai, low, high)]
    cost_of_mai, cost_low, cost_high = (float(each.mean()) for each in tokens)
    share = (cost_of_mai - cost_low) / (cost_high - cost_low) if cost_high != cost_low else -1.0
    random: float | None = None
    difference: Estimate | None = None
    if 0 <= share <= 1:
        expected = (1 - share) * scores[1] + share * scores[2]
        random = 100 * float(expected.mean())
        found = statistics.bootstrap((scores[0] - expected)[:, None], statistics.column_mean(0))
        difference = percent(found, len(mai))
    better = scores[2] > scores[1]
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        evidence.name(cheap.method),
        evidence.name(expensive.method),
        len(mai),
        cost_of_mai,
        100 * share if 0 <= share <= 1 else None,
        100 * float(scores[0].mean()),
        random,
        difference,
        100 * float(np.maximum(scores[1], scores[2]).mean()),
        float(np.where(better, tokens[2], tokens[1]).mean()),
    )


def _kind_rows(evidence: Evidence, run: Run) -> list[tuple[Cell, ...]]:
    other = large_short(evidence, run)
    if other is None:
        return []
    mai, large = evidence.common(run, other)
    kinds: dict[str, tuple[list[Document], list[Document]]] = {}
    for a, b in zip(mai, large, strict=True):
        first, second = kinds.setdefault(a.kind, ([], []))
        first.append(a)
        second.append(b)
    found = [(kind, compare(_plain(first), _plain(second), "")) for kind, (first, second) in kinds.items()]
    compared = sorted(
        ((kind, one) for kind, one in found if one is not None), key=lambda one: (one[1].difference.value, one[0])
    )
    p_values = [one.p for _, one in compared]
    adjusted: Sequence[float | None] = (
        statistics.false_discovery([p for p in p_values if p is not None]) if None not in p_values else p_values
    )
    return [
        (
            benchmark_name(run.benchmark),
            evidence.name(run.method),
            kind,
            one.n,
            one.first,
            one.second,
            one.difference,
            one.only_first,
            one.only_second,
            one.p,
            p,
        )
        for (kind, one), p in zip(compared, adjusted, strict=True)
    ]


def _plain(documents: Sequence[Document]) -> list[Document]:
    """Return documents without their rotations: each one counts by itself."""
    return [replace(document, group=None) if document.group is not None else document for document in documents]
