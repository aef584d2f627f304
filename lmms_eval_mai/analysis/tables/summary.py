"""The two tables that a report prints first: all methods, and the cascades against the others."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.metrics import Comparison
from lmms_eval_mai.analysis.runs.runs import Runs, name_columns
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import METHODS

ORDER = ("agree_short", "confident", "agree_think", "transfer", "large_think")
"""The columns of exits: those of the named methods come first, in this order."""
RIGHT = 0.5
"""A score counts as right from here on. ANLS is the only score between 0 and 1."""


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
    """Yield score, output tokens, exits and seconds of every method."""

    def share(exit: str, run: FinishedRun) -> Estimate | None:
        has_exit = run.setup.family in ("cascade", "solo") and exit in set(run.samples.exit)
        return runs.exit_share(run, exit) if has_exit else None

    every = runs.select()
    exits = [exit for method in (*METHODS.values(), *(run.setup.method for run in every)) for exit in method.exits]
    ordered = sorted(dict.fromkeys(exits), key=lambda exit: ORDER.index(exit) if exit in ORDER else len(ORDER))

    columns: list[Column[FinishedRun]] = [
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        Column("score", "percent", 1, runs.score),
        Column("small\ntokens", "number", 1, lambda run: spent(run)["small_tokens"]),
        Column("large\ntokens", "number", 1, lambda run: spent(run)["large_tokens"]),
        *(Column(exit.replace("_", "_\n"), "brief", 1, partial(share, exit)) for exit in ordered),
        Column("wall s", "number", 3, lambda run: spent(run)["wall_s"]),
    ]
    note = (
        "Brackets: 95% intervals. Compare seconds on one machine only; runs that share calls have none. Own thinking "
        "and MAI with other checks are not in the paper."
    )
    if any("mmmu" in run.benchmark for run in every):
        note += " On MMMU, lmms-eval's scorer guesses an option in place of an answer that it cannot read."
    title = "Methods: score in %, output tokens, exits in %, seconds per document"
    return table("methods", title, columns, every, [note])


# --- the cascades against the others ---


class Against(NamedTuple):
    """A cascade and another method of its models."""

    cascade: FinishedRun
    other: FinishedRun
    comparison: Comparison
    adjusted_p: float
    """For the number of other methods (Holm)."""


def comparisons(runs: Runs) -> Iterator[Against]:
    """Yield the comparison of each cascade with every other method of its models."""
    done: set[FinishedRun] = set()
    for run in runs.select("cascade"):
        done.add(run)  # two cascades are compared once
        models = {run.setup.model, run.setup.small, ""}
        others = [other for other in runs.select(benchmark=run.benchmark) if other not in done]
        compared = [
            (run, other, comparison)
            for other in others
            if (not other.ours or {other.setup.model, other.setup.small} <= models)
            and (comparison := runs.compare(run, other)) is not None
        ]
        adjusted = intervals.holm([comparison.p for *_, comparison in compared])
        yield from (Against(*one, p) for one, p in zip(compared, adjusted, strict=True))


def comparison_table(runs: Runs) -> Iterator[Table]:
    """Yield each cascade against every other method on the same documents."""
    columns: list[Column[Against]] = [
        *name_columns(runs, lambda row: row.cascade, "cascade"),
        Column("against", "text", 0, lambda row: runs.name(row.other.setup)),
        Column("n", "count", 0, lambda row: row.comparison.difference.n),
        Column("difference", "percent", 2, lambda row: row.comparison.difference),
        Column("only cascade\nright", "count", 0, lambda row: row.comparison.only_first),
        Column("only other\nright", "count", 0, lambda row: row.comparison.only_second),
        Column("p", "p", 0, lambda row: row.comparison.p),
        Column("p,\nadjusted", "p", 0, lambda row: row.adjusted_p),
    ]
    title = "Cascades against each other method: paired difference of the scores in points"
    notes = (
        "p: exchanges of both methods' answers with a difference at least as large (McNemar's exact test for right or "
        "wrong answers). Adjusted (Holm): for the number of methods.",
        "On POPE, the difference and p are those of F1.",
    )
    return table("comparisons", title, columns, comparisons(runs), notes)
