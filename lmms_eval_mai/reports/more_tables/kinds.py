"""Where MAI loses to the large model: the kinds of questions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lmms_eval_mai.reports.estimates import compare
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import large_short, traced
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Document, Run
from lmms_eval_mai.reports.report import Cell, Column, Table
from lmms_eval_mai.statistics import holm


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
                "p (Holm) takes the number of kinds into account.",
            ),
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
        holm([p for p in p_values if p is not None]) if None not in p_values else p_values
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
