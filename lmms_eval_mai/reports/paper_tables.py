"""The paper's tables with the paper's numbers: one model alone (Tables 5, 6, 7, 13 and 14), Full RT (Table 8), MAI
(Table 10), and the cascade with one and with two stages (Table 15).

Other models and benchmarks have the same tables without the paper's numbers.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import FULL_RT, LARGE, MAI, OF_VARIANT
from lmms_eval_mai.method.prompts import Variant
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.metrics import Comparison
from lmms_eval_mai.reports.paper_numbers import benchmark_name, family, number
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Table, table
from lmms_eval_mai.reports.runs import OF_F1, Runs, name_columns, order
from lmms_eval_mai.reports.setups import Setup

PROMPTS: tuple[tuple[Variant | None, bool], ...] = (
    *(("S", False), ("E", False), ("E", True), ("R", False), ("R", True), ("native", False)),
    (None, False),
)
PAPERS_PAIR = ("Qwen3-VL", "2B"), ("Qwen3-VL", "8B")
OF_ALL = "n is that of the method; other scores are of all documents of their own runs."

Single = tuple[str, str, tuple[str, ...]]
"""A row about one model: benchmark, model and options."""


# --- one model alone ---


def token_table(runs: Runs) -> Iterator[Table]:
    """Yield the average numbers of generated tokens: Table 13 for InternVL, and Table 5 for all other models."""
    rows = {(b, m.model, m.options) for (b, m), run in runs.runs.items() if m.kind == "alone" and run.ours}
    rows |= {(b, m.small, m.short("small").options) for b, m in runs.runs if m.method == FULL_RT}
    columns = [
        Column(f"{Setup(LARGE, '', '', variant).prompt}{title}", "brief", 1, partial(_tokens, runs, variant, column))
        for column, title in {"output_tokens": "", "answer_tokens": ", answer only"}.items()
        for variant in ("S", "E", "R", "native", None)
    ]
    notes = (
        "S, E, R, N: all generated tokens, the end token included; E and R are the first stage of a two-stage run too. "
        "Answer only: the tokens of the extracted answer.",
        "The paper's 1.0 for POPE is probably the answer only, so its S is compared with both.",
    )
    title = "Tables 5 and 13: average number of generated tokens"
    return _of_one_model(runs, "tables-5-13", title, columns, rows, notes)


def score_table(runs: Runs) -> Iterator[Table]:
    """Yield the scores of one model: Table 14 for InternVL, Table 6 for POPE, and Table 7 for everything else."""
    rows = {(benchmark, m.model, m.options) for benchmark, m in runs.runs if m.kind == "alone"}
    columns = [
        Column(Setup(LARGE, "", "", *prompt).prompt, "percent", 1, partial(_score, runs, prompt)) for prompt in PROMPTS
    ]
    notes = (
        "POPE: F1; InfoVQA: ANLS; MMBench: questions with all rotations right; others: accuracy. (S2): two "
        "stages. S without a run of its own is from the short answers inside a cascade.",
    )
    title = "Tables 6, 7 and 14: performance of one model, %"
    return _of_one_model(runs, "tables-6-7-14", title, columns, rows, notes)


def _of_one_model(
    runs: Runs, key: str, title: str, columns: Iterable[Column[Single]], rows: Iterable[Single], notes: Sequence[str]
) -> Iterator[Table]:
    """Yield a table of single models, with benchmark, model and number of documents before the columns."""
    benchmarks = runs.benchmarks()
    cached = [replace(column, cell=functools.cache(column.cell)) for column in columns]

    def n(row: Single) -> Cell:
        cells = (column.cell(row) for column in cached)
        return max((cell.n for cell in cells if isinstance(cell, Estimate)), default=0)

    named: list[Column[Single]] = [
        Column("benchmark", "text", 0, lambda row: benchmark_name(row[0])),
        Column("model", "text", 0, lambda row: runs.label(row[1]) + (f" ({', '.join(row[2])})" if row[2] else "")),
        Column("n", "count", 0, n),
    ]
    ordered = sorted(rows, key=lambda row: (benchmarks.index(row[0]), order(row[1]), row))
    return table(key, title, [*named, *cached], ordered, notes)


def _is_internvl(model: str) -> bool:
    return (family(model) or ("", ""))[0] == "InternVL3.5"


def _tokens(runs: Runs, variant: Variant | None, column: str, row: Single) -> Estimate | None:
    """Return the tokens of a model with a prompt: all, or those of the answer. They are from the first run that has
    them: a run of the model alone, the short answers inside a cascade, or the thinking inside Full RT. `variant` None:
    the own prompt of another task."""
    benchmark, model, options = row
    paper = None
    if variant and family(model) and not options and (column == "output_tokens" or variant == "S"):
        paper = number(13 if _is_internvl(model) else 5, runs.label(model), benchmark, variant)
    found = [runs.get(benchmark, Setup(LARGE, model, "", variant, two, options)) for two in (False, True)]
    if variant:
        rt = runs.of_full_rt(benchmark)
        found += [
            run
            for run in rt
            if run.setup.alone("small", run.setup.variant) == Setup(LARGE, model, "", variant, False, options)
        ]
    for run in filter(None, found):
        side = run.calls.side.iloc[0] if len(run.calls) else ""
        calls = run.calls[(run.calls.side == side) & (run.calls.prompt == OF_VARIANT[variant])].set_index("doc_id")
        if len(calls) == run.documents and len(calls):  # no answer lacks its call
            return metrics.mean(calls[column], runs.clusters(run), paper)
    return None


def _score(runs: Runs, prompt: tuple[Variant | None, bool], row: Single) -> Estimate | None:
    """Return a score beside the paper's. In Tables 7 and 14, E and R have two stages except on MMMU."""
    benchmark, model, options = row
    setup = Setup(LARGE, model, "", *prompt, options)
    paper = None
    if family(model) and not options and setup.variant:
        paper_table = 14 if _is_internvl(model) else 6 if benchmark == "pope" else 7
        column = setup.prompt if paper_table == 6 else setup.variant
        is_printed = paper_table == 6 or setup.variant == "S" or setup.two_stage != benchmark_of(benchmark).one_stage
        paper = number(paper_table, runs.label(model), benchmark, column) if is_printed else None
    return runs.score(runs.get(benchmark, setup), paper)


def is_papers(setup: Setup) -> bool:
    """Return whether a setup has the pair and the thinking of Tables 10 and 15: 2B-R and 8B of Qwen3-VL."""
    return (family(setup.small), family(setup.model)) == PAPERS_PAIR and setup.variant == "R" and not setup.options


# --- Table 8 ---


def transfer_table(runs: Runs) -> Iterator[Table]:
    """Yield Table 8: Full RT against the large model with the Simple prompt."""

    def paper(run: Run, name: str, column: str = "score") -> float | None:
        """`name`: the row of Table 8, with `small` and `large` in place of the models."""
        setup = run.setup
        families = {(family(model) or ("", ""))[0] for model in (setup.small, setup.model)}
        if families != {"Qwen3-VL"} or setup.variant != "R" or setup.options:
            return None
        row = name.replace("large", runs.label(setup.model)).replace("small", runs.label(setup.small))
        return number(8, row, run.benchmark, column)

    def small_r(run: Run) -> Estimate | None:
        # Only 2B-R has one stage in Table 8.
        comparable = runs.label(run.setup.small) == "2B" or benchmark_of(run.benchmark).one_stage
        one_stage = runs.get(run.benchmark, run.setup.alone("small", "R"))
        return runs.score(one_stage, paper(run, "small-R") if comparable else None)

    def large_r(run: Run) -> Estimate | None:
        setup = run.setup.alone("large", "R", not benchmark_of(run.benchmark).one_stage)
        return runs.score(runs.get(run.benchmark, setup), paper(run, "large-R"))

    def against(run: Run) -> Comparison | None:
        return runs.compare(run, runs.short(run, "large"))

    def relative(run: Run) -> Estimate | None:
        """Return the difference relative to the second score in percent, as Table 8 prints it."""
        found = against(run)
        if found is None or not found.second:
            return None
        value = 100 * (found.first - found.second) / found.second
        return metrics.with_paper(Estimate(value, found.n), paper(run, "large + small-R", "gain"))

    columns: list[Column[Run]] = [
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        Column("small R", "brief", 1, small_r),
        Column("large S", "brief", 1, lambda run: runs.score(runs.short(run, "large"), paper(run, "large-S"))),
        Column("large R", "brief", 1, large_r),
        Column("Full RT", "brief", 1, lambda run: runs.score(run, paper(run, "large + small-R"))),
        Column("gain", "percent", 2, lambda run: getattr(against(run), "difference", None)),
        Column("relative, %", "number", 1, relative),
        Column("p", "p", 0, lambda run: getattr(against(run), "p", None)),
    ]
    return table(
        "table-8",
        "Table 8: reasoning transfer on all documents (Full RT)",
        columns,
        runs.of_full_rt(),
        (
            f"{OF_ALL} Small R has one stage, and large R two (one on MMMU and shapes). Gain: the "
            "paired difference of Full RT and large S in points. p is not adjusted for the number of rows.",
            OF_F1,
        ),
    )


# --- Table 10 ---


def cascade_table(runs: Runs) -> Iterator[Table]:
    """Yield Table 10: the exits of MAI, its score, and the scores of the other methods."""

    def paper(run: Run, column: str, only_one_stage: bool = False) -> float | None:
        if not is_papers(run.setup) or (only_one_stage and run.setup.two_stage):
            return None
        return number(10, "", run.benchmark, column)

    def share(exit: str, run: Run) -> Estimate | None:
        return runs.share(run, run.samples.exit.dropna() == exit, paper(run, exit, True))

    def small_r(run: Run) -> Estimate | None:
        setup = run.setup
        other = runs.get(run.benchmark, setup.alone("small", setup.variant, setup.two_stage))
        return runs.score(other, paper(run, "2B-R", setup.two_stage)) if setup.variant else None

    columns: list[Column[Run]] = [
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        *(Column(f"{exit}, %", "brief", 2, partial(share, exit)) for exit in MAI.exits),
        Column("MAI", "brief", 1, lambda run: runs.score(run, paper(run, "MAI", True))),
        Column("small S", "brief", 1, lambda run: runs.score(runs.short(run, "small"), paper(run, "2B-S"))),
        Column("small R", "brief", 1, small_r),
        Column("large S", "brief", 1, lambda run: runs.score(runs.short(run, "large"), paper(run, "8B-S"))),
        Column("Full RT", "brief", 1, lambda run: runs.score(runs.full_rt(run), paper(run, "Full RT"))),
    ]
    return table(
        "table-10",
        "Table 10: multi-agent inference (MAI)",
        columns,
        [run for run in runs.of("cascade") if run.setup.method == MAI],
        (f"{OF_ALL} agree_short is MV small(S)/large(S), agree_think is MV small(R)/large(S), transfer is RT.",),
    )


# --- Table 15 ---

Pair = tuple[Run, Run]
"""The cascade with one stage, and with two."""


def two_stage_table(runs: Runs) -> Iterator[Table]:
    """Yield Table 15: the cascade whose small model thinks in one stage and in two stages."""
    pairs = [
        (run, other)
        for run in runs.of("cascade")
        if run.setup.method == MAI
        and not run.setup.two_stage
        and (other := runs.get(run.benchmark, replace(run.setup, two_stage=True))) is not None
    ]

    def paper(pair: Pair, row: str, column: str) -> float | None:
        return number(15, row, pair[0].benchmark, column) if is_papers(pair[0].setup) else None

    def share(which: int, exit: str, pair: Pair) -> Estimate | None:
        run = pair[which]
        return runs.share(run, run.samples.exit.dropna() == exit, paper(pair, f"2B-{run.setup.prompt}", exit))

    def score(which: int, pair: Pair) -> Estimate | None:
        return runs.score(pair[which], paper(pair, f"2B-{pair[which].setup.prompt}", "MAI"))

    def compared(pair: Pair) -> Comparison | None:
        return runs.compare(pair[1], pair[0])

    def difference(pair: Pair) -> Estimate | None:
        return metrics.with_paper(getattr(compared(pair), "difference", None), paper(pair, "", "difference"))

    columns: list[Column[Pair]] = [
        *name_columns(runs, lambda pair: pair[0]),
        Column("n", "count", 0, lambda pair: getattr(compared(pair), "n", None)),
    ]
    for which, name in enumerate(("R", "R(S2)")):
        for exit in ("agree_think", "transfer"):
            columns.append(Column(f"{name}: {exit}, %", "brief", 2, partial(share, which, exit)))
        columns.append(Column(f"{name}: MAI", "brief", 2, partial(score, which)))
    columns += [
        Column("difference, points", "percent", 2, difference),
        Column("p", "p", 0, lambda pair: getattr(compared(pair), "p", None)),
    ]
    notes = (
        "n and the difference, R(S2) minus R, are about the documents of both runs. p is not adjusted for the number "
        "of rows.",
        OF_F1,
    )
    return table("table-15", "Table 15: the cascade with R and with R(S2)", columns, pairs, notes)
