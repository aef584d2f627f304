"""The measured wall time of finished runs: decoding strategies on ChartQA (Table 12)."""

from collections.abc import Iterator

from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.metrics import with_paper
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Cell, Estimate, Of, Table, table

BACKENDS = {"transformers": "HF", "vllm": "vLLM"}
"""Engine -> the paper's name of the backend."""
NOTE = (
    "The wall time is the time of answering, without the starts of the engines. The paper's vLLM rows include them. "
    "Compare times only on the same machine and the same engine."
)


def table_12(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 12 if there are runs on ChartQA with their wall times: the large model with R, and MAI."""
    cascades = list(evidence.of("cascade", "chartqa"))
    larges = {run.method.model for run in cascades}
    alone = [run for run in evidence.of("alone", "chartqa") if run.method.variant == "R"]
    runs = [run for run in alone if run.method.model in larges or run.speculation] + cascades
    runs = [run for run in runs if run.wall_s is not None and not run.derived]

    def method(run: Run) -> Cell:
        return evidence.name(run.method) + (" with an assistant" if run.speculation else "")

    def accepted(run: Run) -> Cell:
        proposed, accepted = run.speculation or (0, 0)
        paper = _papers(evidence, run, "acceptance")
        return with_paper(Estimate(100 * accepted / proposed, run.number), paper) if proposed else None

    def wall_s(run: Run, documents: int, column: str) -> Cell:
        paper = None if run.method.two_stage else _papers(evidence, run, column)
        return with_paper(Estimate((run.wall_s or 0.0) / documents, run.number), paper)

    def score(run: Run) -> Cell:
        return evidence.score(run, _papers(evidence, run, "accuracy_s2" if run.method.two_stage else "accuracy"))

    columns: tuple[Of[Run], ...] = (
        Of("method", "text", 0, method),
        Of("engine", "text", 0, lambda run: run.engine or None),
        Of("n", "count", 0, lambda run: run.number),
        Of("accepted, %", "number", 1, accepted),
        Of("wall s", "number", 1, lambda run: wall_s(run, 1, "total_s")),
        Of("s per sample", "number", 3, lambda run: wall_s(run, run.number or 1, "s_per_sample")),
        Of("score", "number", 2, score),
    )
    yield from table("table-12", "Table 12: measured wall time of strategies on ChartQA", columns, runs, [NOTE])


def _papers(evidence: Evidence, run: Run, column: str) -> PaperNumber | None:
    """Return a cell of Table 12. None: the paper has no such run, or no such number."""
    backend = BACKENDS.get(run.engine)
    if backend is None or paper_numbers.family(run.method.model) != ("Qwen3-VL", "8B") or run.method.options:
        return None
    if run.method.mode == "cascade":
        row = f"MAI (8B+2B), {backend}" if evidence.label(run.method.small) == "2B" else ""
    else:
        row = f"SD (8B+2B), {backend}" if run.speculation else f"8B-R, {backend}"
    printed = paper_numbers.table(12)
    value = printed["rows"][row][printed["columns"].index(column)] if row in printed["rows"] else None
    return None if value is None else PaperNumber(value, f"{printed['source']}, {row}, {column}")
