"""Two models: Full RT (Table 8), MAI (Table 10), and the cascade with one and with two stages (Table 15)."""

from collections import Counter
from collections.abc import Iterator

from lmms_eval_mai.contract import Side
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.estimates import Comparison, share, with_paper
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import Method, Run
from lmms_eval_mai.reports.report import OF_RUN, Cell, Column, Estimate, Table

ONE_STAGE = ("mmmu_val",)
"""Benchmarks on which 4B-R and 8B-R of Table 8 have one stage. On the others they have two."""


def transfer_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 8: Full RT against the large model with the Simple prompt."""
    rows = tuple(_transfer_row(evidence, run) for run in evidence.of("transfer"))
    if rows:
        yield Table(
            key="table-8",
            title="Table 8: reasoning transfer on all documents (Full RT)",
            columns=(
                *OF_RUN,
                Column("small R"),
                Column("large S"),
                Column("large R"),
                Column("Full RT"),
                Column("Full RT - large S, points"),
                Column("relative, %"),
                Column("p", "p"),
            ),
            rows=rows,
            notes=(
                "Small R has one stage. Large R has two stages, except on MMMU. The difference is paired, on "
                "the same documents. p is McNemar's exact test.",
                *_own_prompt_note(evidence, "transfer"),
            ),
        )


def cascade_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 10: the exits of MAI, its score, and the scores of the other methods."""
    rows = tuple(_cascade_row(evidence, run) for run in evidence.of("cascade"))
    if rows:
        yield Table(
            key="table-10",
            title="Table 10: multi-agent inference (MAI)",
            columns=(
                *OF_RUN,
                *(Column(f"{exit}, documents", "count") for exit in EXITS["cascade"]),
                *(Column(f"{exit}, %", digits=2) for exit in EXITS["cascade"]),
                Column("MAI"),
                Column("small S"),
                Column("small R"),
                Column("large S"),
                Column("Full RT"),
            ),
            rows=rows,
            notes=(
                "agree_short is MV small(S)/large(S), agree_think is MV small(R)/large(S), transfer is RT.",
                *_own_prompt_note(evidence, "cascade"),
            ),
        )


def two_stage_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 15: the cascade whose small model thinks in one stage and in two stages."""
    rows = []
    for run in evidence.of("cascade"):
        method = run.method
        other = evidence.get(run.benchmark, _with_stages(method, True))
        if not method.two_stage and other is not None:
            rows.append(_two_stage_row(evidence, run, other))
    if rows:
        yield Table(
            key="table-15",
            title="Table 15: the cascade with R and with R(S2)",
            columns=(
                *OF_RUN,
                Column("R: agree_think, %", digits=2),
                Column("R: transfer, %", digits=2),
                Column("R: MAI", digits=2),
                Column("R(S2): agree_think, %", digits=2),
                Column("R(S2): transfer, %", digits=2),
                Column("R(S2): MAI", digits=2),
                Column("difference, points", digits=2),
                Column("p", "p"),
            ),
            rows=tuple(rows),
            notes=("The difference is R(S2) minus R on the same documents.",),
        )


def is_papers(evidence: Evidence, method: Method) -> bool:
    """Return whether Table 10 is about this cascade: 2B-R and 8B of Qwen3-VL, one stage, default arguments."""
    pair = paper_numbers.family(method.small), paper_numbers.family(method.model)
    return pair == (("Qwen3-VL", "2B"), ("Qwen3-VL", "8B")) and method.variant == "R" and not method.options


def _own_prompt_note(evidence: Evidence, mode: str) -> Iterator[str]:
    if any(run.method.variant is None for run in evidence.of(mode)):
        yield "Own prompt: both models answer the task's own prompt in place of S; the small model thinks with R or E."


def _transfer_row(evidence: Evidence, run: Run) -> tuple[Cell, ...]:
    method, benchmark = run.method, run.benchmark
    small, large = evidence.label(method.small), evidence.label(method.model)
    in_paper = _in_table_8(method)

    def paper(row: str) -> PaperNumber | None:
        return paper_numbers.transfer(row, benchmark) if in_paper else None

    def score(side: Side, variant: Variant | None, two_stage: bool, row: str) -> Estimate | None:
        return evidence.score(evidence.get(benchmark, method.alone(side, variant, two_stage)), paper(row))

    short: Variant | None = "S" if method.variant else None
    large_s = evidence.get(benchmark, method.alone("large", short))
    comparison = evidence.compare(run, large_s)
    # Only 2B-R has one stage in Table 8.
    small_r = score("small", "R", False, f"{small}-R" if small == "2B" or benchmark in ONE_STAGE else "")
    two_stage = benchmark not in ONE_STAGE
    gain = paper_numbers.transfer_gain(f"{large} + {small}-R", benchmark) if in_paper else None
    return (
        paper_numbers.benchmark_name(benchmark),
        evidence.name(method),
        len(run.documents) or run.number,
        small_r,
        score("large", short, False, f"{large}-S"),
        score("large", "R", two_stage, f"{large}-R"),
        evidence.score(run, paper(f"{large} + {small}-R")),
        None if comparison is None else comparison.difference,
        None if comparison is None else _relative(comparison, gain),
        None if comparison is None else comparison.p,
    )


def _relative(comparison: Comparison, paper: PaperNumber | None) -> Estimate | None:
    """Return the difference relative to the second score in percent, as Table 8 prints it."""
    if not comparison.second:
        return None
    value = 100 * (comparison.first - comparison.second) / comparison.second
    return with_paper(Estimate(value, comparison.n), paper)


def _in_table_8(method: Method) -> bool:
    families = {(paper_numbers.family(model) or ("", ""))[0] for model in (method.small, method.model)}
    return families == {"Qwen3-VL"} and method.variant == "R" and not method.options


def _cascade_row(evidence: Evidence, run: Run) -> tuple[Cell, ...]:
    method, benchmark = run.method, run.benchmark
    short: Variant | None = "S" if method.variant else None
    in_paper = is_papers(evidence, method)

    def paper(column: str) -> PaperNumber | None:
        return paper_numbers.cascade(benchmark, column) if in_paper else None

    def alone(side: Side, variant: Variant | None, two_stage: bool, column: str) -> Estimate | None:
        return evidence.score(evidence.get(benchmark, method.alone(side, variant, two_stage)), paper(column))

    exits = Counter(document.exit for document in run.documents)
    traced = sum(exits[exit] for exit in EXITS["cascade"])
    one_stage = in_paper and not method.two_stage
    return (
        paper_numbers.benchmark_name(benchmark),
        evidence.name(method),
        len(run.documents) or run.number,
        *(exits[exit] if traced else None for exit in EXITS["cascade"]),
        *(share(exits[exit], traced, paper(exit) if one_stage else None) for exit in EXITS["cascade"]),
        evidence.score(run, paper("MAI") if one_stage else None),
        alone("small", short, False, "2B-S"),
        alone("small", method.variant, method.two_stage, "" if method.two_stage else "2B-R")
        if method.variant
        else None,
        alone("large", short, False, "8B-S"),
        evidence.score(evidence.get(benchmark, method.full_rt()), paper("Full RT")),
    )


def _with_stages(method: Method, two_stage: bool) -> Method:
    return Method(method.mode, method.model, method.small, method.variant, two_stage, method.options)


def _two_stage_row(evidence: Evidence, one: Run, two: Run) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for run, row in ((one, "2B-R"), (two, "2B-R(S2)")):
        exits = Counter(document.exit for document in run.documents)
        in_paper = is_papers(evidence, run.method)
        for exit in ("agree_think", "transfer"):
            paper = paper_numbers.two_stage(one.benchmark, row, exit) if in_paper else None
            cells.append(share(exits[exit], sum(exits[name] for name in EXITS["cascade"]), paper))
        cells.append(evidence.score(run, paper_numbers.two_stage(one.benchmark, row, "MAI") if in_paper else None))
    comparison = evidence.compare(two, one)
    difference = None if comparison is None else comparison.difference
    printed = paper_numbers.table(15)["rows"].get(one.benchmark)
    if printed is not None and is_papers(evidence, one.method):
        number = PaperNumber(printed["difference"], f"{paper_numbers.table(15)['source']}, difference")
        difference = with_paper(difference, number)
    return (
        paper_numbers.benchmark_name(one.benchmark),
        evidence.name(one.method),
        one.number,
        *cells,
        difference,
        None if comparison is None else comparison.p,
    )
