"""Times of decoding strategies on ChartQA (Table 12)."""

from collections.abc import Iterator

from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.estimates import with_paper
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table

BACKENDS = {"transformers": "HF", "vllm": "vLLM"}
"""Engine -> the paper's name of the backend."""


def decoding_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 12 if there are runs on ChartQA with their wall times: the large model with R, and MAI."""
    runs = [run for run in evidence.of("alone", "chartqa") if run.method.variant == "R" and _is_timed(run)]
    runs += [run for run in evidence.of("cascade", "chartqa") if _is_timed(run)]
    larges = {run.method.model for run in evidence.of("cascade", "chartqa")}
    runs = [run for run in runs if run.method.mode == "cascade" or run.method.model in larges or run.speculation]
    if runs:
        yield Table(
            key="table-12",
            title="Table 12: decoding strategies on ChartQA",
            columns=(
                Column("method", "text"),
                Column("engine", "text"),
                Column("n", "count"),
                Column("accepted, %"),
                Column("wall s", digits=1),
                Column("s per sample", digits=3),
                Column("score", digits=2),
            ),
            rows=tuple(_row(evidence, run) for run in runs),
            notes=(
                "The wall time is the time of answering, without the starts of the engines. The paper's vLLM rows "
                "include them. Compare times only on the same machine and the same engine.",
            ),
        )


def _is_timed(run: Run) -> bool:
    return run.wall_s is not None and not run.derived


def _row(evidence: Evidence, run: Run) -> tuple[Cell, ...]:
    paper = _paper_row(evidence, run)
    proposed, accepted = run.speculation or (0, 0)
    score = evidence.score(run, _number(paper, "accuracy_s2" if run.method.two_stage else "accuracy"))
    number = run.number or 1
    return (
        evidence.name(run.method) + (" with an assistant" if run.speculation else ""),
        run.engine or None,
        run.number,
        _measured(100 * accepted / proposed, run, _number(paper, "acceptance")) if proposed else None,
        _measured(run.wall_s or 0.0, run, None if run.method.two_stage else _number(paper, "total_s")),
        _measured((run.wall_s or 0.0) / number, run, None if run.method.two_stage else _number(paper, "s_per_sample")),
        score,
    )


def _measured(value: float, run: Run, paper: PaperNumber | None) -> Estimate | None:
    return with_paper(Estimate(value, run.number), paper)


def _paper_row(evidence: Evidence, run: Run) -> str | None:
    """Return the row of Table 12 that a run is about, or None."""
    backend = BACKENDS.get(run.engine)
    large = paper_numbers.family(run.method.model)
    if backend is None or large != ("Qwen3-VL", "8B") or run.method.options:
        return None
    if run.method.mode == "cascade":
        row = f"MAI (8B+2B), {backend}" if evidence.label(run.method.small) == "2B" else ""
    else:
        row = f"SD (8B+2B), {backend}" if run.speculation else f"8B-R, {backend}"
    return row if row in paper_numbers.table(12)["rows"] else None


def _number(row: str | None, column: str) -> PaperNumber | None:
    if row is None:
        return None
    table = paper_numbers.table(12)
    value = table["rows"][row][table["columns"].index(column)]
    return None if value is None else PaperNumber(value, f"{table['source']}, {row}, {column}")
