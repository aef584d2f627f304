"""Two of the tables that a report prints first: all methods, and their differences."""

from collections.abc import Iterator
from typing import NamedTuple

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.metrics import Comparison
from lmms_eval_mai.analysis.runs.runs import Runs, name_columns
from lmms_eval_mai.analysis.runs.setups import FAMILIES
from lmms_eval_mai.contract import SIDES

# --- all methods ---


def spent(run: FinishedRun) -> dict[str, float | None]:
    """Return what a method spends on one document on average: `small_tokens` and `large_tokens` (output tokens), and
    `wall_s`. None: not known. Another model of lmms-eval counts as the large model."""
    tokens, calls, number = run.samples.output_tokens, run.calls, run.documents
    is_known = number and tokens.notna().all() and not (run.ours and run.samples.exit.isna().any())
    if run.ours:
        sums = {f"{side}_tokens": calls.output_tokens[calls.side == side].sum(skipna=False) for side in SIDES}
    else:
        sums = {"small_tokens": None, "large_tokens": tokens.sum()}
    costs = {name: float(total / number) if is_known and total is not None else None for name, total in sums.items()}
    return {**costs, "wall_s": run.wall_s / number if run.wall_s and number else None}


def method_table(runs: Runs) -> Iterator[Table]:
    """Yield score, output tokens and seconds of every method."""

    def seconds(run: FinishedRun) -> float | str | None:
        if run.wall_s is None and run.calls.shared.any():
            return "replay" if run.is_replay else "shared"
        return spent(run)["wall_s"]

    columns: list[Column[FinishedRun]] = [
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        Column("score", "percent", 1, runs.score),
        Column("small\ntokens", "number", 1, lambda run: spent(run)["small_tokens"]),
        Column("large\ntokens", "number", 1, lambda run: spent(run)["large_tokens"]),
        Column("wall s", "number", 3, seconds),
    ]
    every = runs.select()
    note = "In brackets: 95% intervals. Compare seconds of one machine only."
    if any(run.calls.shared.any() for run in every):
        note += " shared, replay: with some or all calls of other runs, so its seconds are not known."
    if any("mmmu" in run.benchmark for run in every):
        note += " On MMMU, lmms-eval's scorer guesses an option in place of an answer that it cannot read."
    title = "Methods: score in %, output tokens and seconds per document"
    return table("methods", title, columns, every, [note])


# --- differences ---


class Against(NamedTuple):
    """Two methods on the same documents."""

    run: FinishedRun
    other: FinishedRun
    comparison: Comparison
    adjusted_p: float
    """For the number of all comparisons on the benchmark (Holm)."""


def comparisons(runs: Runs, benchmark: str) -> Iterator[Against]:
    """Yield the comparison of each method with every other one of its models: first the cascades, then the
    large model that may think for itself, Full RT, and one model alone."""
    in_order = [run for family in reversed(FAMILIES) for run in runs.select(family, benchmark=benchmark)]
    pairs = [{run.setup.model, run.setup.small} for run in in_order if run.setup.small]
    compared = []
    for number, run in enumerate(in_order):
        models = {run.setup.model, run.setup.small}
        together = models.union(runs.roles, *(pair for pair in pairs if pair >= models - {""}))
        compared += [
            (run, other, comparison)
            for other in in_order[number + 1 :]  # two methods are compared once
            if (not other.ours or {other.setup.model, other.setup.small} - {""} <= together)
            and (comparison := runs.compare(run, other)) is not None
        ]
    adjusted = intervals.holm([comparison.p for *_, comparison in compared])
    yield from (Against(*one, p) for one, p in zip(compared, adjusted, strict=True))


def difference_table(runs: Runs) -> Iterator[Table]:
    """Yield each method that may stop early against every other one on the same documents."""
    every = (row for benchmark in runs.benchmarks() for row in comparisons(runs, benchmark))
    rows = [row for row in every if row.run.setup.family in ("cascade", "solo")]
    columns: list[Column[Against]] = [
        *name_columns(runs, lambda row: row.run),
        Column("against", "text", 0, lambda row: runs.name(row.other.setup)),
        Column("n", "count", 0, lambda row: row.comparison.difference.n),
        Column("difference", "percent", 1, lambda row: row.comparison.difference),
        Column("only\nthis", "count", 0, lambda row: row.comparison.only_first),
        Column("only\nother", "count", 0, lambda row: row.comparison.only_second),
        Column("p", "p", 0, lambda row: row.adjusted_p),
    ]
    notes = [
        "Only this, only other: documents that only one of both has right. p: adjusted for all comparisons on the "
        "benchmark (Holm); below 0.05, the scores are told apart."
    ]
    if any(row.run.benchmark == "pope" for row in rows):
        notes.append("On POPE, the difference and p are those of F1.")
    title = "Differences: score of the method minus that of the other"
    return table("differences", title, columns, rows, notes)
