"""The share of answers that the scorer cannot read, by model and prompt."""

from collections.abc import Iterator

from lmms_eval_mai.reports.estimates import share
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.methods import MODES
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import Cell, Column, Table


def unreadable_table(evidence: Evidence) -> Iterator[Table]:
    """Yield the share of unreadable and of cut-off answers of each method, and of the thinking inside each cascade."""
    rows = []
    for benchmark in evidence.benchmarks():
        for mode in MODES:
            for run in evidence.of(mode, benchmark):
                rows += list(_rows(evidence, run))
    if rows:
        yield Table(
            key="unreadable",
            title="Answers that the benchmark's scorer cannot read",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("answer", "text"),
                Column("n", "count"),
                Column("unreadable, %", digits=2),
                Column("cut off by a limit, %", digits=2),
            ),
            rows=tuple(rows),
            notes=(
                "An unreadable answer agrees with nothing and is wrong, except that lmms-eval's MMMU scorer guesses an "
                "option. Cut off: any call of the answer.",
            ),
        )


def _rows(evidence: Evidence, run: Run) -> Iterator[tuple[Cell, ...]]:
    known = [document for document in run.documents if document.readable is not None]
    if known:
        cut = sum(any(call.cut_off for call in document.calls) for document in known)
        unreadable = sum(not document.readable for document in known)
        yield _row(evidence, run, "final", unreadable, cut, len(known))
    thought = [document for document in run.documents if len(document.verifications) > 1]
    if thought:
        cut = sum(any(call.cut_off for call in one.calls if call.stage in ("think", "stage2")) for one in thought)
        unreadable = sum(document.verifications[1].small is None for document in thought)
        yield _row(evidence, run, "small model's thinking", unreadable, cut, len(thought))


def _row(evidence: Evidence, run: Run, answer: str, unreadable: int, cut: int, number: int) -> tuple[Cell, ...]:
    return (
        benchmark_name(run.benchmark),
        evidence.name(run.method),
        answer,
        number,
        share(unreadable, number),
        share(cut, number),
    )
