"""One model alone: output tokens (Tables 5 and 13) and scores (Tables 6, 7 and 14)."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lmms_eval_mai import statistics
from lmms_eval_mai.contract import Side
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.estimates import estimate, with_paper
from lmms_eval_mai.reports.evidence import Evidence, order
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import CallCost, Document, Method, Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table

PROMPTS: tuple[tuple[Variant, bool], ...] = (("S", False), ("E", False), ("E", True), ("R", False), ("R", True))
VARIANTS: tuple[Variant, ...] = ("S", "E", "R")
TOKEN_TABLES = {"Qwen3-VL": 5, "InternVL3.5": 13}
"""Family -> its table of output tokens."""

Row = tuple[str, str, tuple[str, ...]]
"""Benchmark, model and options of a row."""


def token_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the average numbers of generated tokens: Table 5, Table 13, and one table for other models."""
    own = any(method.variant is None for (_, method), run in evidence.runs.items() if run.ours)
    variants: tuple[Variant | None, ...] = (*VARIANTS, None) if own else VARIANTS
    for family, rows in _families(_token_rows(evidence)):
        number = TOKEN_TABLES.get(family)
        placed = sorted(rows, key=lambda row: _place(evidence, row))
        cells = tuple(_token_cells(evidence, row, number, variants) for row in placed)
        yield Table(
            key=f"table-{number}" if number else "tokens",
            title=f"Table {number}: average number of generated tokens, {family}"
            if number
            else "Average number of generated tokens (as Table 5)",
            columns=(
                Column("benchmark", "text"),
                Column("model", "text"),
                Column("n", "count"),
                *(Column(variant or "own prompt") for variant in variants),
                *(Column(f"{variant or 'own prompt'}, answer only") for variant in variants),
            ),
            rows=cells,
            notes=(
                "S, E, R: all generated tokens, the end token included; E and R are the first stage of a two-stage "
                "run too. Answer only: the tokens of the extracted answer. The paper's 1.0 for POPE is probably the "
                "answer only, so its S is compared with both.",
                "Intervals: Student's t.",
            ),
        )


def score_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the scores of one model: Table 6 (POPE), Table 7 (other benchmarks), Table 14, and one for other models."""
    tables: dict[str, tuple[str, list[tuple[Cell, ...]]]] = {}
    methods = {(benchmark, method) for (benchmark, method) in evidence.runs if method.mode == "alone"}
    own = any(method.variant is None for _, method in methods)
    for family, rows in _families({(benchmark, method.model, method.options) for benchmark, method in methods}):
        for row in sorted(rows, key=lambda row: _place(evidence, row)):
            number = _score_table(family, row[0])
            key = f"table-{number}" if number else "scores"
            title = f"Table {number}: performance, {family}" if number else "Performance of one model (as Table 7)"
            tables.setdefault(key, (title, []))[1].append(_score_cells(evidence, row, number, own))
    for key, (title, cells) in tables.items():
        yield Table(
            key=key,
            title=title,
            columns=(
                Column("benchmark", "text"),
                Column("model", "text"),
                Column("n", "count"),
                *(Column(Method("alone", "", "", *prompt).prompt) for prompt in PROMPTS),
                *([Column("own prompt")] if own else []),
            ),
            rows=tuple(cells),
            notes=(
                "POPE: F1; InfoVQA: ANLS x 100; MMBench: share of questions with all rotations right; others: accuracy "
                "in percent. (S2): two stages. Intervals: Wilson for shares, bootstrap for F1 and ANLS.",
                *(_derived_note(evidence)),
            ),
        )


def call_tokens(run: Run, side: Side, stages: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the output tokens and the answer tokens of one stage for each document; None if a document lacks it."""
    calls = [_call(document, side, stages) for document in run.documents]
    found = [call for call in calls if call is not None]
    if not found or len(found) < len(calls):
        return None
    answers = [call.answer_tokens for call in found if call.answer_tokens is not None]
    return (
        np.array([call.output_tokens for call in found], dtype=float),
        np.array(answers, dtype=float) if len(answers) == len(found) else None,
    )


def _call(document: Document, side: Side, stages: tuple[str, ...]) -> CallCost | None:
    return next((call for call in document.calls if call.side == side and call.stage in stages), None)


def _token_rows(evidence: Evidence) -> set[Row]:
    rows = {(b, m.model, m.options) for (b, m), run in evidence.runs.items() if m.mode == "alone" and run.ours}
    return rows | {(b, m.small, m.alone("small", "S").options) for b, m in evidence.runs if m.mode == "transfer"}


def _token_cells(
    evidence: Evidence, row: Row, number: int | None, variants: Sequence[Variant | None]
) -> tuple[Cell, ...]:
    benchmark, model, _ = row
    found = {variant: _tokens(evidence, row, variant) for variant in variants}
    name = evidence.label(model)
    generated, answers = [], []
    for variant, tokens in found.items():
        paper = paper_numbers.cell(number, name, benchmark, variant) if number and variant and not row[2] else None
        generated.append(None if tokens is None else _mean(tokens[0], paper))
        answer = None if tokens is None or tokens[1] is None else tokens[1]
        answers.append(None if answer is None else _mean(answer, paper if variant == "S" else None))
    n = max((one.n for one in generated if one is not None), default=0)
    return paper_numbers.benchmark_name(benchmark), _name(evidence, row), n, *generated, *answers


def _tokens(evidence: Evidence, row: Row, variant: Variant | None) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the tokens of a model with a prompt, from the first run that has them: a run of the model alone, the short
    answers inside a cascade, or the thinking inside Full RT. `variant` None: the own prompt of another task."""
    benchmark, model, options = row
    stages = ("think",) if variant in ("E", "R") else ("short", "task")
    for two_stage in (False, True):
        run = evidence.get(benchmark, Method("alone", model, "", variant, two_stage, options))
        if run is not None and run.documents:
            side = run.documents[0].calls[0].side if run.documents[0].calls else "small"
            if (found := call_tokens(run, side, stages)) is not None:
                return found
    for run in evidence.of("transfer", benchmark) if variant else ():
        method = run.method
        if (method.small, method.variant, method.alone("small", "S").options) == (model, variant, options):
            return call_tokens(run, "small", stages)
    return None


def _mean(values: np.ndarray, paper: PaperNumber | None) -> Estimate:
    found = estimate(statistics.mean(values))
    return with_paper(found, paper) or found


def _score_table(family: str, benchmark: str) -> int | None:
    if paper_numbers.documents(benchmark) is None:
        return None
    if family == "Qwen3-VL":
        return 6 if benchmark == "pope" else 7
    return 14 if family == "InternVL3.5" else None


def _score_cells(evidence: Evidence, row: Row, number: int | None, own: bool) -> tuple[Cell, ...]:
    benchmark, model, options = row
    cells = []
    for variant, two_stage in PROMPTS:
        method = Method("alone", model, "", variant, two_stage, options)
        paper = paper_score(evidence, benchmark, method, number) if number else None
        cells.append(evidence.score(evidence.get(benchmark, method), paper))
    if own:
        cells.append(evidence.score(evidence.get(benchmark, Method("alone", model, "", None, False, options))))
    n = max((cell.n for cell in cells if cell is not None), default=0)
    return paper_numbers.benchmark_name(benchmark), _name(evidence, row), n, *cells


def paper_score(evidence: Evidence, benchmark: str, method: Method, number: int) -> PaperNumber | None:
    """Return the paper's score of one model in Table 6, 7 or 14. In Tables 7 and 14, E and R have two stages except on
    MMMU."""
    if method.options:
        return None
    name = evidence.label(method.model)
    if number == 6:
        return paper_numbers.cell(6, name, benchmark, method.prompt)
    one_stage = benchmark in paper_numbers.table(number)["one_stage"]
    if method.variant != "S" and method.two_stage == one_stage:
        return None
    return paper_numbers.cell(number, name, benchmark, method.variant or "")


def _families(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each family of the paper, and of all other models together. No empty family."""
    families: dict[str, list[Row]] = {"Qwen3-VL": [], "InternVL3.5": [], "other": []}
    for row in sorted(rows):
        families[(paper_numbers.family(row[1]) or ("other", ""))[0]].append(row)
    return ((family, found) for family, found in families.items() if found)


def _place(evidence: Evidence, row: Row) -> tuple[int, float, Row]:
    return evidence.benchmarks().index(row[0]), order(row[1]), row


def _name(evidence: Evidence, row: Row) -> str:
    return evidence.label(row[1]) + (f" ({', '.join(row[2])})" if row[2] else "")


def _derived_note(evidence: Evidence) -> Iterator[str]:
    if any(run.derived for run in evidence.runs.values()):
        yield (
            "If a model has no run of its own with the Simple prompt, S is from its short answers inside the cascade, "
            "scored with the rule of the benchmark's scorer."
        )
