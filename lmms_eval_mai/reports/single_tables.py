"""One model alone: output tokens (Tables 5 and 13) and scores (Tables 6, 7 and 14)."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pandas as pd

from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.reports import metrics, paper_numbers
from lmms_eval_mai.reports.evidence import Evidence, order
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Of, Table, table

PROMPTS: tuple[tuple[Variant, bool], ...] = (("S", False), ("E", False), ("E", True), ("R", False), ("R", True))
VARIANTS: tuple[Variant, ...] = ("S", "E", "R")
TOKEN_TABLES = {"Qwen3-VL": 5, "InternVL3.5": 13}
"""Family -> its table of output tokens."""

DERIVED = (
    "If a model has no run of its own with the Simple prompt, S is from its short answers inside the cascade, scored "
    "with the rule of the benchmark's scorer."
)

Row = tuple[str, str, tuple[str, ...]]
"""Benchmark, model and options of a row."""


def token_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the average numbers of generated tokens: Table 5, Table 13, and one table for other models."""
    own = any(method.variant is None for (_, method), run in evidence.runs.items() if run.ours)
    variants: tuple[Variant | None, ...] = (*VARIANTS, None) if own else VARIANTS
    rows = {(b, m.model, m.options) for (b, m), run in evidence.runs.items() if m.mode == "alone" and run.ours}
    rows |= {(b, m.small, m.short("small").options) for b, m in evidence.runs if m.mode == "transfer"}
    for family, placed in _families(evidence, rows):
        number = TOKEN_TABLES.get(family)
        cells: dict[Row, list[Estimate | None]] = {}
        for row in placed:
            found = [_tokens(evidence, row, one, number) for one in variants]
            cells[row] = [one for one, _ in found] + [answer for _, answer in found]
        named = [one or "own prompt" for one in variants]
        yield from _table(
            evidence,
            f"table-{number}" if number else "tokens",
            f"Table {number}: average number of generated tokens, {family}"
            if number
            else "Average number of generated tokens (as Table 5)",
            [Column(name, "number") for name in (*named, *(f"{one}, answer only" for one in named))],
            cells,
            (
                "S, E, R: all generated tokens, the end token included; E and R are the first stage of a two-stage "
                "run too. Answer only: the tokens of the extracted answer. The paper's 1.0 for POPE is probably the "
                "answer only, so its S is compared with both.",
                "Intervals: Student's t, or the bootstrap if documents share images.",
            ),
        )


def score_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the scores of one model: Table 6 (POPE), Table 7 (other benchmarks), Table 14, and one for other models."""
    methods = {(benchmark, method) for benchmark, method in evidence.runs if method.mode == "alone"}
    own = any(method.variant is None for _, method in methods)
    is_derived = any(run.derived for run in evidence.runs.values())
    tables: dict[tuple[int | None, str], list[Row]] = {}
    for family, rows in _families(evidence, {(benchmark, m.model, m.options) for benchmark, m in methods}):
        for row in rows:
            tables.setdefault((number := _score_table(family, row[0]), family if number else ""), []).append(row)
    for (number, family), rows in tables.items():
        prompts: list[tuple[Variant | None, bool]] = [*PROMPTS, *([(None, False)] if own else [])]
        yield from _table(
            evidence,
            f"table-{number}" if number else "scores",
            f"Table {number}: performance, {family}" if number else "Performance of one model (as Table 7)",
            [Column(Method("alone", "", "", *prompt).prompt, "percent") for prompt in prompts],
            {row: [_score(evidence, row, *prompt, number) for prompt in prompts] for row in rows},
            [*_metric_notes({row[0] for row in rows}), *([DERIVED] if is_derived else [])],
        )


def paper_score(evidence: Evidence, benchmark: str, method: Method, number: int) -> PaperNumber | None:
    """Return the paper's score of one model in Table 6, 7 or 14. In Tables 7 and 14, E and R have two stages except on
    MMMU."""
    if method.options or method.variant is None:
        return None
    find = partial(paper_numbers.number, number, evidence.label(method.model), benchmark)
    if number == 6:
        return find(method.prompt)
    one_stage = benchmark in paper_numbers.ONE_STAGE
    return None if method.variant != "S" and method.two_stage == one_stage else find(method.variant)


def _table(
    evidence: Evidence,
    key: str,
    title: str,
    columns: Sequence[Column],
    cells: dict[Row, list[Estimate | None]],
    notes: Sequence[str],
) -> Iterator[Table]:
    """Yield a table of the cells of each row, after its benchmark, its model, and the number of documents."""

    def n(row: Row) -> Cell:
        numbers = sorted({cell.n for cell in cells[row] if cell is not None})
        if len(numbers) < 2:
            return numbers[0] if numbers else 0
        return f"{numbers[0]} to {numbers[-1]}"

    def cell(place: int, row: Row) -> Cell:
        return cells[row][place]

    named: list[Of[Row]] = [
        Of("benchmark", "text", 0, lambda row: paper_numbers.benchmark_name(row[0])),
        Of("model", "text", 0, lambda row: evidence.label(row[1]) + (f" ({', '.join(row[2])})" if row[2] else "")),
        Of("n", "count", 0, n),
    ]
    others = [Of(one.title, one.kind, one.digits, partial(cell, place)) for place, one in enumerate(columns)]
    return table(key, title, [*named, *others], cells, notes)


def _tokens(
    evidence: Evidence, row: Row, variant: Variant | None, number: int | None
) -> tuple[Estimate | None, Estimate | None]:
    """Return the tokens of a model with a prompt: all, and those of the answer. They are from the first run that has
    them: a run of the model alone, the short answers inside a cascade, or the thinking inside Full RT. `variant` None:
    the own prompt of another task."""
    benchmark, model, options = row
    name = evidence.label(model)
    paper = paper_numbers.number(number, name, benchmark, variant) if number and variant and not options else None
    stages = ("think",) if variant in ("E", "R") else ("short", "task")
    alone = [evidence.get(benchmark, Method("alone", model, "", variant, two, options)) for two in (False, True)]
    thinking = [
        run
        for run in (evidence.of("transfer", benchmark) if variant else ())
        if (run.method.small, run.method.variant, run.method.short("small").options) == (model, variant, options)
    ]
    for run in filter(None, (*alone, *thinking)):
        if (calls := _calls(run, stages)) is not None:
            clusters = evidence.clusters(run)
            generated = metrics.mean(calls.output_tokens, clusters, paper)
            return generated, metrics.mean(calls.answer_tokens, clusters, paper if variant == "S" else None)
    return None, None


def _calls(run: Run, stages: Sequence[str]) -> pd.DataFrame | None:
    """Return the first call of each answer in one of the stages, by document. None if an answer lacks it."""
    side = run.calls.side.iloc[0] if len(run.calls) else ""
    calls = run.calls[(run.calls.side == side) & run.calls.stage.isin(stages)]
    calls = calls.drop_duplicates(["doc_id", "repeat"]).set_index("doc_id")
    return calls if len(calls) == len(run.samples) and len(calls) else None


def _score_table(family: str, benchmark: str) -> int | None:
    if paper_numbers.documents(benchmark) is None:
        return None
    if family == "Qwen3-VL":
        return 6 if benchmark == "pope" else 7
    return 14 if family == "InternVL3.5" else None


def _score(
    evidence: Evidence, row: Row, variant: Variant | None, two_stage: bool, number: int | None
) -> Estimate | None:
    benchmark, model, options = row
    method = Method("alone", model, "", variant, two_stage, options)
    paper = paper_score(evidence, benchmark, method, number) if number else None
    return evidence.score(evidence.get(benchmark, method), paper)


def _families(evidence: Evidence, rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows of each family of the paper, and of all other models together. No empty family."""
    families: dict[str, list[Row]] = {"Qwen3-VL": [], "InternVL3.5": [], "other": []}
    benchmarks = evidence.benchmarks()
    for row in sorted(rows, key=lambda row: (benchmarks.index(row[0]), order(row[1]), row)):
        families[(paper_numbers.family(row[1]) or ("other", ""))[0]].append(row)
    return ((family, found) for family, found in families.items() if found)


def _metric_notes(benchmarks: set[str]) -> Iterator[str]:
    """Yield what the scores of these benchmarks are."""
    named = {
        "pope": "POPE: F1 (interval: bootstrap)",
        "infovqa_val": "InfoVQA: ANLS x 100 (bootstrap)",
        "mmbench_en_dev": "MMBench: share of questions with all rotations right",
    }
    special = [text for name, text in named.items() if name in benchmarks]
    others = ["others: accuracy in percent"] if special else ["Accuracy in percent"]
    if benchmarks - named.keys():
        special += others
    yield f"{'; '.join(special)}. (S2): two stages. Intervals of shares: Wilson, or the bootstrap of clusters."
