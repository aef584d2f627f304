"""All methods on one benchmark: score and cost, and MAI against each of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from lmms_eval_mai.contract import Side
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import OF_RUN, Cell, Column, Table

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
    """None: also if a call is shared."""


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

    seconds = [call.seconds for one in run.documents for call in one.calls]
    known = [one for one in seconds if one is not None]
    call_seconds = sum(known) / number if len(known) == len(seconds) else None
    return Cost(sum(counts) / number, tokens("small"), tokens("large"), call_seconds)


def method_table(evidence: Evidence) -> Iterator[Table]:
    """Yield score and cost of every method."""
    rows = []
    for benchmark in evidence.benchmarks():
        rows += [_method_row(evidence, run) for mode in MODES for run in evidence.of(mode, benchmark)]
    yield Table(
        key="methods",
        title="Score and cost of every method",
        columns=(
            *OF_RUN,
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
            "documents. Right: the sum of the scores. Compare seconds only on the same machine and the same engine. A "
            "run has no seconds if it shares calls with other runs.",
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
                if id(other) in done or not is_comparable(run, other):
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
                "The difference is paired, on the same documents. p is McNemar's exact test; it is missing if scores "
                "are not just right or wrong (ANLS). POPE: the difference is that of F1, and p is about accuracy.",
            ),
        )


def is_comparable(run: Run, other: Run) -> bool:
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
