"""Two models: Full RT (Table 8), sparse transfer (Table 9), MAI (Table 10), and the cascade with one and with two
stages (Table 15)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.evidence import Evidence, of_run
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.paper_numbers import ONE_STAGE, PaperNumber, family, number
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Estimate, Of, Table, table

SPARSE = "transfer=sparse"
STAGES = ("R", "R(S2)")
PAPERS_PAIR = ("Qwen3-VL", "2B"), ("Qwen3-VL", "8B")


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

    def comparison(run: Run) -> metrics.Comparison | None:
        return evidence.compare(run, evidence.short(run, "large"))

    def relative(run: Run) -> Estimate | None:
        """Return the difference relative to the second score in percent, as Table 8 prints it."""
        found = comparison(run)
        if found is None or not found.second:
            return None
        value = 100 * (found.first - found.second) / found.second
        return metrics.with_paper(Estimate(value, found.n), paper(run, "large + small-R", "gain"))

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("n", "count", 0, lambda run: run.documents),
        Of("small R", "percent", 1, small_r),
        Of("large S", "percent", 1, lambda run: evidence.score(evidence.short(run, "large"), paper(run, "large-S"))),
        Of("large R(S2)", "percent", 1, large_r),
        Of("Full RT", "percent", 1, lambda run: evidence.score(run, paper(run, "large + small-R"))),
        Of("Full RT - large S, points", "percent", 1, lambda run: getattr(comparison(run), "difference", None)),
        Of("relative, %", "number", 1, relative),
        Of("p", "p", 0, lambda run: getattr(comparison(run), "p", None)),
    ]
    return table(
        "table-8",
        "Table 8: reasoning transfer on all documents (Full RT)",
        columns,
        evidence.of("transfer"),
        (
            "n is that of Full RT; other scores are of all documents of their own runs. Small R has one stage. Large "
            "R has two stages, except on MMMU. The difference is paired, on the same documents, and p is of this "
            "difference (on POPE, that of F1). It is not adjusted for the number of rows.",
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
        rows += sorted(sparse, key=lambda run: (_layer(run) or 0, run.method.options))
        rows += dict.fromkeys(one for run in sparse if (one := _full(evidence, run)) is not None)

    def paper(run: Run, column: str) -> PaperNumber | None:
        others = [one for one in run.method.options if one != SPARSE and not one.startswith("sparse_layer=")]
        is_known = run.benchmark == "pope" and is_papers(run.method) and not others
        return number(9, _layer_name(run), "pope", column) if is_known else None

    def against(other: Run | None, run: Run) -> Estimate | None:
        return getattr(evidence.compare(run, other), "difference", None)

    columns: list[Of[Run]] = [
        *of_run(evidence, lambda run: run),
        Of("layer", "text", 0, _layer_name),
        Of("n", "count", 0, lambda run: run.documents),
        Of("kept tokens", "number", 1, lambda run: _kept(evidence, run, paper(run, "tokens"))),
        Of("of scored, %", "number", 1, _kept_share),
        Of("score", "percent", 1, lambda run: evidence.score(run, paper(run, "f1"))),
        Of("- Full RT, points", "percent", 2, lambda run: against(_full(evidence, run), run)),
        Of("- large S, points", "percent", 2, lambda run: against(evidence.short(run, "large"), run)),
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
    """Return the average number of transferred tokens of the thinking."""
    if SPARSE in run.method.options:
        found = run.samples.kept_tokens.dropna()
    else:
        found = run.calls[run.calls.stage == "think"].set_index("doc_id").output_tokens
    return metrics.mean(found, evidence.clusters(run), paper)


def _kept_share(run: Run) -> float | None:
    scored = float(run.samples.scored_tokens.sum())
    return 100 * float(run.samples.kept_tokens.sum()) / scored if scored else None


def _layer(run: Run) -> int | None:
    layers = run.samples.layer.dropna()
    return int(layers.iloc[0]) if len(layers) else None


def _layer_name(run: Run) -> str:
    if SPARSE not in run.method.options:
        return "Full"
    return "?" if (layer := _layer(run)) is None else f"L{layer}"


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
        evidence.of("cascade"),
        (
            "n is that of MAI; other scores are of all documents of their own runs. agree_short is MV "
            "small(S)/large(S), agree_think is MV small(R)/large(S), transfer is RT.",
            *_own_prompt_note(evidence, "cascade"),
        ),
    )


# --- Table 15 ---


def two_stage_table(evidence: Evidence) -> Iterator[Table]:
    """Yield Table 15: the cascade whose small model thinks in one stage and in two stages."""
    pairs = [
        (run, other)
        for run in evidence.of("cascade")
        if not run.method.two_stage
        and (other := evidence.get(run.benchmark, replace(run.method, two_stage=True))) is not None
    ]
    Pair = tuple[Run, Run]

    def paper(pair: Pair, row: str, column: str) -> PaperNumber | None:
        is_known = is_papers(pair[0].method) and not pair[0].method.options
        return number(15, row, pair[0].benchmark, column) if is_known else None

    def share(which: int, exit: str, pair: Pair) -> Estimate | None:
        found = evidence.common(*pair)[which].exit == exit
        return evidence.share(pair[0], found, paper(pair, f"2B-{STAGES[which]}", exit))

    def score(which: int, pair: Pair) -> Estimate | None:
        samples, benchmark = evidence.common(*pair)[which], pair[0].benchmark
        found = metrics.score(samples, benchmark, evidence.clusters(pair[0]))
        return metrics.with_paper(found, paper(pair, f"2B-{STAGES[which]}", "MAI"))

    def compared(name: str, pair: Pair) -> Any:
        return getattr(evidence.compare(pair[1], pair[0]), name, None)

    def difference(pair: Pair) -> Estimate | None:
        return metrics.with_paper(compared("difference", pair), paper(pair, "", "difference"))

    columns: list[Of[Pair]] = [
        *of_run(evidence, lambda pair: pair[0]),
        Of("n", "count", 0, partial(compared, "n")),
    ]
    for which, name in enumerate(STAGES):
        for exit in ("agree_think", "transfer"):
            columns.append(Of(f"{name}: {exit}, %", "percent", 2, partial(share, which, exit)))
        columns.append(Of(f"{name}: MAI", "percent", 2, partial(score, which)))
    columns.append(Of("difference, points", "percent", 2, difference))
    columns.append(Of("p", "p", 0, partial(compared, "p")))
    return table(
        "table-15",
        "Table 15: the cascade with R and with R(S2)",
        columns,
        pairs,
        (
            "All columns are about the documents of both runs. The difference is R(S2) minus R, and p is of this "
            "difference (on POPE, that of F1). It is not adjusted for the number of rows.",
        ),
    )
