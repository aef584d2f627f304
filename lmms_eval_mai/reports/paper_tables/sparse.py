"""Sparse reasoning transfer by layer (Table 9)."""

from collections.abc import Iterator

from lmms_eval_mai import statistics
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.estimates import estimate, with_paper
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.more_tables.exits import large_short
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import Method, Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table

SPARSE = "transfer=sparse"


def sparse_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 9 if there are runs with `transfer=sparse`: one row for each layer, and one for Full RT."""
    rows: list[tuple[Cell, ...]] = []
    for benchmark in evidence.benchmarks():
        sparse = [run for run in evidence.of("transfer", benchmark) if SPARSE in run.method.options]
        for run in sorted(sparse, key=lambda run: (_layer(run) or 0, run.method.options)):
            rows.append(_row(evidence, run))
        for full in {id(one): one for run in sparse if (one := _full(evidence, run)) is not None}.values():
            rows.append(_row(evidence, full))
    if rows:
        yield Table(
            key="table-9",
            title="Table 9: sparse reasoning transfer",
            columns=(
                Column("benchmark", "text"),
                Column("method", "text"),
                Column("layer", "text"),
                Column("n", "count"),
                Column("kept tokens"),
                Column("of scored, %"),
                Column("score"),
                Column("- Full RT, points", digits=2),
                Column("- large S, points", digits=2),
            ),
            rows=tuple(rows),
            notes=(
                "Kept tokens: the average number of transferred tokens of the thinking. Full: the output tokens of the "
                "thinking. Differences are paired, on the same documents.",
            ),
        )


def _row(evidence: Evidence, run: Run) -> tuple[Cell, ...]:
    layer = _layer(run)
    name = "Full" if SPARSE not in run.method.options else f"L{layer}" if layer else "?"
    in_paper = run.benchmark == "pope" and _is_papers(run.method)

    def paper(column: str) -> PaperNumber | None:
        return paper_numbers.sparse(name, column) if in_paper else None

    against = [evidence.compare(run, other) for other in (_full(evidence, run), large_short(evidence, run))]
    scored = sum(document.scored_tokens or 0 for document in run.documents)
    kept = sum(document.kept_tokens or 0 for document in run.documents)
    return (
        paper_numbers.benchmark_name(run.benchmark),
        evidence.name(run.method),
        name,
        len(run.documents) or run.number,
        _tokens(run, paper("tokens")),
        100 * kept / scored if scored else None,
        evidence.score(run, paper("f1")),
        *(None if one is None else one.difference for one in against),
    )


def _tokens(run: Run, paper: PaperNumber | None) -> Estimate | None:
    """Return the average number of transferred tokens of the thinking."""
    if SPARSE in run.method.options:
        found = [document.kept_tokens for document in run.documents if document.kept_tokens is not None]
    else:
        found = [call.output_tokens for one in run.documents for call in one.calls if call.stage == "think"]
    if not found:
        return None
    return with_paper(estimate(statistics.mean(found)), paper)


def _layer(run: Run) -> int | None:
    return next((document.layer for document in run.documents if document.layer is not None), None)


def _full(evidence: Evidence, run: Run) -> Run | None:
    """Return Full RT of the pair. None if this run is Full RT itself."""
    method = run.method
    kept = tuple(option for option in method.options if not option.startswith(("transfer=", "sparse_")))
    full = evidence.get(run.benchmark, Method("transfer", method.model, method.small, method.variant, False, kept))
    return None if full is run else full


def _is_papers(method: Method) -> bool:
    """Return whether Table 9 is about this method: 2B-R and 8B of Qwen3-VL, and no option but the layer."""
    pair = paper_numbers.family(method.small), paper_numbers.family(method.model)
    others = [one for one in method.options if one != SPARSE and not one.startswith("sparse_layer=")]
    return pair == (("Qwen3-VL", "2B"), ("Qwen3-VL", "8B")) and method.variant == "R" and not others
