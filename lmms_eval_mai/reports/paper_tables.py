"""The paper's tables: one model alone (Tables 5, 6, 7, 13 and 14), Full RT (Table 8), sparse transfer (Table 9), MAI
(Table 10), and the cascade with one and with two stages (Table 15)."""

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.evidence import OF_F1, Evidence, of_comparison, of_run, order
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.metrics import Comparison
from lmms_eval_mai.reports.paper_numbers import ONE_STAGE, PaperNumber, benchmark_name, documents, family, number
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Cell, Estimate, Note, Of, Table, table

PROMPTS: tuple[tuple[Variant | None, bool], ...] = (("S", False), ("E", False), ("E", True), ("R", False), ("R", True))
VARIANTS: tuple[Variant | None, ...] = ("S", "E", "R")
TOKEN_TABLES = {"Qwen3-VL": 5, "InternVL3.5": 13}
"""Family -> its table of output tokens."""
SPARSE = "transfer=sparse"
PAPERS_PAIR = ("Qwen3-VL", "2B"), ("Qwen3-VL", "8B")

Single = tuple[str, str, tuple[str, ...]]
"""A row about one model: benchmark, model and options."""


# --- one model alone ---


def token_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the average numbers of generated tokens: Table 5, Table 13, and one table for other models."""
    own = any(method.variant is None for (_, method), run in evidence.runs.items() if run.ours)
    variants = (*VARIANTS, None) if own else VARIANTS
    rows = {(b, m.model, m.options) for (b, m), run in evidence.runs.items() if m.mode == "alone" and run.ours}
    rows |= {(b, m.small, m.short("small").options) for b, m in evidence.runs if m.mode == "transfer"}
    for name, of_family in _families(evidence, rows):
        paper_table = TOKEN_TABLES.get(name)
        columns = [
            Of(
                f"{variant or 'own prompt'}{title}",
                "number",
                1,
                partial(_tokens, evidence, paper_table, variant, column),
            )
            for column, title in {"output_tokens": "", "answer_tokens": ", answer only"}.items()
            for variant in variants
        ]
        key, title = "tokens", "Average number of generated tokens (as Table 5)"
        if paper_table:
            key, title = f"table-{paper_table}", f"Table {paper_table}: average number of generated tokens, {name}"
        notes = (
            "S, E, R: all generated tokens, the end token included; E and R are the first stage of a two-stage run "
            "too. Answer only: the tokens of the extracted answer.",
            ("POPE", "The paper's 1.0 for POPE is probably the answer only, so its S is compared with both."),
            "Intervals: Student's t, or the bootstrap if documents share images.",
        )
        yield from _of_one_model(evidence, key, title, columns, of_family, notes)


def score_tables(evidence: Evidence) -> Iterator[Table]:
    """Yield the scores of one model: Table 6 (POPE), Table 7 (other benchmarks), Table 14, and one for other models."""
    methods = {(benchmark, method) for benchmark, method in evidence.runs if method.mode == "alone"}
    prompts = [*PROMPTS, *([(None, False)] if any(method.variant is None for _, method in methods) else [])]
    tables: dict[tuple[int | None, str], list[Single]] = {}
    for name, rows in _families(evidence, {(benchmark, m.model, m.options) for benchmark, m in methods}):
        for row in rows:
            paper_table = _score_table(name, row[0])
            tables.setdefault((paper_table, name if paper_table else ""), []).append(row)
    for (paper_table, name), rows in tables.items():
        columns = [
            Of(Method("alone", "", "", *prompt).prompt, "percent", 1, partial(_score, evidence, paper_table, prompt))
            for prompt in prompts
        ]
        notes = [_metric_note({row[0] for row in rows})]
        if any(run.derived for run in evidence.runs.values()):
            notes.append(
                "If a model has no run of its own with the Simple prompt, S is from its short answers inside the "
                "cascade, scored with the rule of the benchmark's scorer."
            )
        key, title = "scores", "Performance of one model (as Table 7)"
        if paper_table:
            key, title = f"table-{paper_table}", f"Table {paper_table}: performance, {name}"
        yield from _of_one_model(evidence, key, title, columns, rows, notes)


def _of_one_model(
    evidence: Evidence,
    key: str,
    title: str,
    columns: Sequence[Of[Single]],
    rows: Sequence[Single],
    notes: Sequence[Note],
) -> Iterator[Table]:
    """Yield a table with benchmark, model and number of documents before the other columns."""
    cached = [replace(column, cell=functools.cache(column.cell)) for column in columns]

    def n(row: Single) -> Cell:
        cells = (column.cell(row) for column in cached)
        numbers = sorted({cell.n for cell in cells if isinstance(cell, Estimate)}) or [0]
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    named: list[Of[Single]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row[0])),
        Of("model", "text", 0, lambda row: evidence.label(row[1]) + (f" ({', '.join(row[2])})" if row[2] else "")),
        Of("n", "count", 0, n),
    ]
    return table(key, title, [*named, *cached], rows, notes)


def _tokens(
    evidence: Evidence, paper_table: int | None, variant: Variant | None, column: str, row: Single
) -> Estimate | None:
    """Return the tokens of a model with a prompt: all, or those of the answer. They are from the first run that has
    them: a run of the model alone, the short answers inside a cascade, or the thinking inside Full RT. `variant` None:
    the own prompt of another task."""
    benchmark, model, options = row
    paper = None
    if paper_table and variant and not options and (column == "output_tokens" or variant == "S"):
        paper = number(paper_table, evidence.label(model), benchmark, variant)
    stages = ("think",) if variant in ("E", "R") else ("short", "task")
    alone = [evidence.get(benchmark, Method("alone", model, "", variant, two, options)) for two in (False, True)]
    thinking = [
        run
        for run in (evidence.of("transfer", benchmark) if variant else ())
        if (run.method.small, run.method.variant, run.method.short("small").options) == (model, variant, options)
    ]
    for run in filter(None, (*alone, *thinking)):
        side = run.calls.side.iloc[0] if len(run.calls) else ""
        calls = run.calls[(run.calls.side == side) & run.calls.stage.isin(stages)]
        calls = calls.drop_duplicates(["doc_id", "repeat"]).set_index("doc_id")
        if len(calls) == len(run.samples) and len(calls):  # no answer lacks its call
            return metrics.mean(calls[column], evidence.clusters(run), paper)
    return None


def _score_table(name: str, benchmark: str) -> int | None:
    if documents(benchmark) is None:
        return None
    if name == "Qwen3-VL":
        return 6 if benchmark == "pope" else 7
    return 14 if name == "InternVL3.5" else None


def _score(
    evidence: Evidence, paper_table: int | None, prompt: tuple[Variant | None, bool], row: Single
) -> Estimate | None:
    benchmark, model, options = row
    method = Method("alone", model, "", *prompt, options)
    return evidence.score(evidence.get(benchmark, method), paper_score(evidence, benchmark, method, paper_table))


def paper_score(evidence: Evidence, benchmark: str, method: Method, paper_table: int | None) -> PaperNumber | None:
    """Return the paper's score of one model in Table 6, 7 or 14. In Tables 7 and 14, E and R have two stages except on
    MMMU."""
    if paper_table is None or method.options or method.variant is None:
        return None
    if paper_table != 6 and method.variant != "S" and method.two_stage == (benchmark in ONE_STAGE):
        return None
    column = method.prompt if paper_table == 6 else method.variant
    return number(paper_table, evidence.label(method.model), benchmark, column)


def _families(evidence: Evidence, rows: Iterable[Single]) -> Iterator[tuple[str, list[Single]]]:
    """Yield the rows of each family of the paper, and of all other models together. No empty family."""
    families: dict[str, list[Single]] = {"Qwen3-VL": [], "InternVL3.5": [], "other": []}
    benchmarks = evidence.benchmarks()
    for row in sorted(rows, key=lambda row: (benchmarks.index(row[0]), order(row[1]), row)):
        families[(family(row[1]) or ("other", ""))[0]].append(row)
    return ((name, found) for name, found in families.items() if found)


def _metric_note(benchmarks: Collection[str]) -> str:
    named = {
        "pope": "POPE: F1 (interval: bootstrap)",
        "infovqa_val": "InfoVQA: ANLS x 100 (bootstrap)",
        "mmbench_en_dev": "MMBench: share of questions with all rotations right",
    }
    special = [text for name, text in named.items() if name in benchmarks]
    if set(benchmarks) - named.keys():
        special.append("others: accuracy in percent" if special else "Accuracy in percent")
    return f"{'; '.join(special)}. (S2): two stages. Intervals of shares: Wilson, or the bootstrap of clusters."


def is_papers(method: Method) -> bool:
    """Return whether a method has the pair and the thinking of Tables 9, 10 and 15: 2B-R and 8B of Qwen3-VL."""
    return (family(method.small), family(method.model)) == PAPERS_PAIR and method.variant == "R"


# --- Table 8 ---


def transfer_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 8: Full RT against the large model with the Simple prompt."""

    def paper(run: Run, name: str, column: str = "score") -> PaperNumber | None:
        """`name`: the row of Table 8, with `small` and `large` in place of the models."""
        method = run.method
        families = {(family(model) or ("", ""))[0] for model in (method.small, method.model)}
        if families != {"Qwen3-VL"} or method.variant != "R" or method.options:
            return None
        row = name.replace("large", evidence.label(method.model)).replace("small", evidence.label(method.small))
        return number(8, row, run.benchmark, column)

    def small_r(run: Run) -> Estimate | None:
        # Only 2B-R has one stage in Table 8.
        comparable = evidence.label(run.method.small) == "2B" or run.benchmark in ONE_STAGE
        one_stage = evidence.get(run.benchmark, run.method.alone("small", "R"))
        return evidence.score(one_stage, paper(run, "small-R") if comparable else None)

    def large_r(run: Run) -> Estimate | None:
        method = run.method.alone("large", "R", run.benchmark not in ONE_STAGE)
        return evidence.score(evidence.get(run.benchmark, method), paper(run, "large-R"))

    def relative(run: Run) -> Estimate | None:
        """Return the difference relative to the second score in percent, as Table 8 prints it."""
        found = evidence.against_large_s(run)
        if found is None or not found.second:
            return None
        value = 100 * (found.first - found.second) / found.second
        return metrics.with_paper(Estimate(value, found.n), paper(run, "large + small-R", "gain"))

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("n", "count", 0, lambda run: run.documents),
        Of("small R", "percent", 1, small_r),
        Of("large S", "percent", 1, lambda run: evidence.score(evidence.short(run, "large"), paper(run, "large-S"))),
        Of("large R", "percent", 1, large_r),
        Of("Full RT", "percent", 1, lambda run: evidence.score(run, paper(run, "large + small-R"))),
        *of_comparison(evidence.against_large_s, difference="Full RT - large S, points"),
        Of("relative, %", "number", 1, relative),
        *of_comparison(evidence.against_large_s, p="p"),
    ]
    return table(
        "table-8",
        "Table 8: reasoning transfer on all documents (Full RT)",
        columns,
        evidence.of("transfer"),
        (
            "n is that of Full RT; other scores are of all documents of their own runs. Small R has one stage, and "
            "large R has two. The difference is paired, on the same documents, and p is of this difference. It is not "
            "adjusted for the number of rows.",
            ("MMMU", "On MMMU, large R has one stage."),
            ("shapes", "On shapes, large R has one stage."),
            OF_F1,
            *_own_prompt_note(evidence, "transfer"),
        ),
    )


def _own_prompt_note(evidence: Evidence, mode: str) -> Iterator[str]:
    if any(run.method.variant is None for run in evidence.of(mode)):
        yield "Own prompt: both models answer the task's own prompt in place of S; the small model thinks with R or E."


# --- Table 9 ---


def sparse_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 9 if there are runs with `transfer=sparse`: one row for each layer, and one for Full RT."""
    rows: list[Run] = []
    for benchmark in evidence.benchmarks():
        sparse = [run for run in evidence.of("transfer", benchmark) if SPARSE in run.method.options]
        rows += sorted(sparse, key=lambda run: (run.samples.layer.min(), run.method.options))
        rows += dict.fromkeys(one for run in sparse if (one := _full(evidence, run)) is not None)

    def paper(run: Run, column: str) -> PaperNumber | None:
        others = [one for one in run.method.options if one != SPARSE and not one.startswith("sparse_layer=")]
        is_known = run.benchmark == "pope" and is_papers(run.method) and not others
        return number(9, _layer(run), "pope", column) if is_known else None

    def against_full(run: Run) -> Comparison | None:
        return evidence.compare(run, _full(evidence, run))

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("layer", "text", 0, _layer),
        Of("n", "count", 0, lambda run: run.documents),
        Of("kept tokens", "number", 1, lambda run: _kept(evidence, run, paper(run, "tokens"))),
        Of("of scored, %", "number", 1, _kept_share),
        Of("score", "percent", 1, lambda run: evidence.score(run, paper(run, "f1"))),
        *of_comparison(against_full, difference="- Full RT, points"),
        *of_comparison(evidence.against_large_s, difference="- large S, points"),
    ]
    return table(
        "table-9",
        "Table 9: sparse reasoning transfer",
        columns,
        rows,
        (
            "Kept tokens: the average number of transferred tokens of the thinking. Full: the output tokens of the "
            "thinking. Differences are paired, on the same documents.",
        ),
    )


def _kept(evidence: Evidence, run: Run, paper: PaperNumber | None) -> Estimate | None:
    if SPARSE in run.method.options:
        found = run.samples.kept_tokens.dropna()
    else:
        found = run.calls[run.calls.stage == "think"].set_index("doc_id").output_tokens
    return metrics.mean(found, evidence.clusters(run), paper)


def _kept_share(run: Run) -> float | None:
    scored = float(run.samples.scored_tokens.sum())
    return 100 * float(run.samples.kept_tokens.sum()) / scored if scored else None


def _layer(run: Run) -> str:
    return f"L{run.samples.layer.min():.0f}" if SPARSE in run.method.options else "Full"


def _full(evidence: Evidence, run: Run) -> Run | None:
    """Return Full RT of the pair. None if this run is Full RT itself."""
    kept = tuple(option for option in run.method.options if not option.startswith(("transfer=", "sparse_")))
    full = evidence.get(run.benchmark, replace(run.method, two_stage=False, options=kept))
    return None if full is run else full


# --- Table 10 ---


def cascade_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 10: the exits of MAI, its score, and the scores of the other methods."""

    def paper(run: Run, column: str, only_one_stage: bool = False) -> PaperNumber | None:
        if not is_papers(run.method) or run.method.options or (only_one_stage and run.method.two_stage):
            return None
        return number(10, "", run.benchmark, column)

    def number_of(exit: str, run: Run) -> int | None:
        known = run.samples.exit.dropna()
        return int((known == exit).sum()) if len(known) else None

    def share(exit: str, run: Run) -> Estimate | None:
        return evidence.share(run, run.samples.exit.dropna() == exit, paper(run, exit, True))

    def small_r(run: Run) -> Estimate | None:
        method = run.method
        other = evidence.get(run.benchmark, method.alone("small", method.variant, method.two_stage))
        return evidence.score(other, paper(run, "2B-R", method.two_stage)) if method.variant else None

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("n", "count", 0, lambda run: run.documents),
        *(Of(f"{exit}, documents", "count", 0, partial(number_of, exit)) for exit in EXITS["cascade"]),
        *(Of(f"{exit}, %", "percent", 2, partial(share, exit)) for exit in EXITS["cascade"]),
        Of("MAI", "percent", 1, lambda run: evidence.score(run, paper(run, "MAI", True))),
        Of("small S", "percent", 1, lambda run: evidence.score(evidence.short(run, "small"), paper(run, "2B-S"))),
        Of("small R", "percent", 1, small_r),
        Of("large S", "percent", 1, lambda run: evidence.score(evidence.short(run, "large"), paper(run, "8B-S"))),
        Of("Full RT", "percent", 1, lambda run: evidence.score(evidence.full_rt(run), paper(run, "Full RT"))),
    ]
    return table(
        "table-10",
        "Table 10: multi-agent inference (MAI)",
        columns,
        [run for run in evidence.of("cascade") if run.method.verify == "agreement"],
        (
            "n is that of MAI; other scores are of all documents of their own runs. agree_short is MV "
            "small(S)/large(S), agree_think is MV small(R)/large(S), transfer is RT.",
            *_own_prompt_note(evidence, "cascade"),
        ),
    )


# --- Table 15 ---

Pair = tuple[Run, Run]
"""The cascade with one stage, and with two."""


def two_stage_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 15: the cascade whose small model thinks in one stage and in two stages."""
    pairs = [
        (run, other)
        for run in evidence.of("cascade")
        if not run.method.two_stage
        and (other := evidence.get(run.benchmark, replace(run.method, two_stage=True))) is not None
    ]
    prompts = ("R", "R(S2)")

    def paper(pair: Pair, row: str, column: str) -> PaperNumber | None:
        is_known = is_papers(pair[0].method) and not pair[0].method.options
        return number(15, row, pair[0].benchmark, column) if is_known else None

    def share(which: int, exit: str, pair: Pair) -> Estimate | None:
        found = evidence.common(*pair)[which].exit == exit
        return evidence.share(pair[0], found, paper(pair, f"2B-{prompts[which]}", exit))

    def score(which: int, pair: Pair) -> Estimate | None:
        samples, benchmark = evidence.common(*pair)[which], pair[0].benchmark
        found = metrics.score(samples, benchmark, evidence.clusters(pair[0]))
        return metrics.with_paper(found, paper(pair, f"2B-{prompts[which]}", "MAI"))

    def compared(pair: Pair) -> Comparison | None:
        found, printed = evidence.compare(pair[1], pair[0]), paper(pair, "", "difference")
        if found is None or printed is None:
            return found
        return replace(found, difference=replace(found.difference, paper=printed.value, source=printed.source))

    columns: list[Of[Pair]] = [*of_run(evidence, lambda pair: pair[0]), *of_comparison(compared, n="n")]
    for which, name in enumerate(prompts):
        for exit in ("agree_think", "transfer"):
            columns.append(Of(f"{name}: {exit}, %", "percent", 2, partial(share, which, exit)))
        columns.append(Of(f"{name}: MAI", "percent", 2, partial(score, which)))
    columns += of_comparison(compared, difference="difference, points", p="p")
    return table(
        "table-15",
        "Table 15: the cascade with R and with R(S2)",
        columns,
        pairs,
        (
            "All columns are about the documents of both runs. The difference is R(S2) minus R, and p is of this "
            "difference. It is not adjusted for the number of rows.",
            OF_F1,
        ),
    )
