"""The four tables that a report prints first: all methods, the cascades against them, agreement, harm and rescue."""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from lmms_eval_mai.analysis import frames
from lmms_eval_mai.analysis.report import Column, Estimate, Table, table
from lmms_eval_mai.analysis.runs import metrics
from lmms_eval_mai.analysis.runs.folders import Run
from lmms_eval_mai.analysis.runs.metrics import Comparison
from lmms_eval_mai.analysis.runs.replay import checks
from lmms_eval_mai.analysis.runs.runs import Runs, name_columns
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import METHODS

ORDER = ("agree_short", "confident", "agree_think", "transfer", "large_think")
"""The columns of exits: those of the named methods come first, in this order."""
RIGHT = 0.5
"""A score counts as right from here on. ANLS is the only score between 0 and 1."""


# --- all methods ---


def spent(run: Run) -> dict[str, float | None]:
    """Return what a method spends on one document on average: `small_tokens` and `large_tokens` (output tokens), and
    `wall_s`. None: not known. Another model of lmms-eval counts as the large model."""
    tokens, number = run.samples.output_tokens, run.documents
    is_known = number and tokens.notna().all() and not (run.ours and run.samples.exit.isna().any())
    sums = {side: frames.spent(run.calls, side).output_tokens if run.ours else tokens.sum() for side in SIDES}
    costs = {f"{side}_tokens": float(sums[side] / number) if is_known else None for side in SIDES}
    if not run.ours:
        costs["small_tokens"] = None
    return {**costs, "wall_s": run.wall_s / number if run.wall_s and number else None}


def method_table(runs: Runs) -> Iterator[Table]:
    """Yield score, output tokens, exits and seconds of every method."""

    def cost(name: str, run: Run) -> float | None:
        return spent(run)[name]

    def share(exit: str, run: Run) -> Estimate | None:
        exits = run.samples.exit.dropna()
        return runs.share(run, exits == exit) if run.setup.kind in ("cascade", "own") and exit in set(exits) else None

    every = runs.every()
    exits = [exit for method in (*METHODS.values(), *(run.setup.method for run in every)) for exit in method.exits]
    ordered = sorted(dict.fromkeys(exits), key=lambda exit: ORDER.index(exit) if exit in ORDER else len(ORDER))

    columns: list[Column[Run]] = [
        *name_columns(runs, lambda run: run),
        Column("n", "count", 0, lambda run: run.documents),
        Column("score", "percent", 1, runs.score),
        Column("small\ntokens", "number", 1, partial(cost, "small_tokens")),
        Column("large\ntokens", "number", 1, partial(cost, "large_tokens")),
        *(Column(exit.replace("_", "_\n"), "brief", 1, partial(share, exit)) for exit in ordered),
        Column("wall s", "number", 3, partial(cost, "wall_s")),
    ]
    note = (
        "Brackets: 95% intervals. Compare seconds on one machine only; runs that share calls have none. Own thinking "
        "and MAI with other checks are not in the paper."
    )
    if any("mmmu" in run.benchmark for run in every):
        note += " On MMMU, lmms-eval's scorer guesses an option in place of an answer that it cannot read."
    return table(
        "methods",
        "Methods: score in %, output tokens, exits in %, seconds per document",
        columns,
        every,
        [note],
    )


# --- the cascades against the others ---

Against = tuple[Run, Run, Comparison]
"""A cascade, another method, and their comparison."""


def comparisons(runs: Runs) -> Iterator[Against]:
    """Yield the comparison of each cascade with every other method of its models. The p values of one cascade are
    adjusted for their number (Holm)."""
    done: set[Run] = set()
    for run in runs.of("cascade"):
        done.add(run)  # two cascades are compared once
        others = [other for other in runs.of_benchmark(run.benchmark) if other not in done]
        compared = {
            other: comparison
            for other in others
            if is_comparable(run, other) and (comparison := runs.compare(run, other)) is not None
        }
        adjusted = metrics.adjusted(list(compared.values()))
        yield from ((run, other, comparison) for other, comparison in zip(compared, adjusted, strict=True))


def is_comparable(run: Run, other: Run) -> bool:
    """Return whether another run has models of this cascade only, or is not one of `mai_cascade`."""
    return not other.ours or {other.setup.model, other.setup.small} <= {run.setup.model, run.setup.small, ""}


def comparison_table(runs: Runs) -> Iterator[Table]:
    """Yield each cascade against every other method on the same documents."""
    columns: list[Column[Against]] = [
        *name_columns(runs, lambda row: row[0], "cascade"),
        Column("against", "text", 0, lambda row: runs.name(row[1].setup)),
        Column("n", "count", 0, lambda row: row[2].n),
        Column("difference", "percent", 2, lambda row: row[2].difference),
        Column("only cascade\nright", "count", 0, lambda row: row[2].only_first),
        Column("only other\nright", "count", 0, lambda row: row[2].only_second),
        Column("p", "p", 0, lambda row: row[2].p),
        Column("p,\nadjusted", "p", 0, lambda row: row[2].adjusted),
    ]
    return table(
        "comparisons",
        "Cascades against each other method: paired difference of the scores in points",
        columns,
        comparisons(runs),
        (
            "p: exchanges of both methods' answers with a difference at least as large (McNemar's exact test for right "
            "or wrong answers). Adjusted (Holm): for the number of methods.",
            "On POPE, the difference and p are those of F1.",
        ),
    )


# --- agreement ---

Checked = tuple[Run, str, pd.DataFrame]
"""A cascade, a check, and for each answer that was compared: whether the models `agree`, and whether the large model's
short answer is `right` (1 or 0; nan if it is not known)."""


def checked(runs: Runs, run: Run) -> Iterator[Checked]:
    """Yield the checks of a cascade by agreement, by the name of their exit. Where a stop also asks how sure a model
    is, answers `agree` only if it is."""
    for stop, compared in checks(run):
        score = compared.score
        if stop.answer in ("large.simple", "large.task"):
            score = runs.large_short_scores(run)[compared.index]
        right = (score >= RIGHT).astype(float).where(score.notna())
        if len(compared):
            yield run, stop.exit, pd.DataFrame({"agree": compared.done, "right": right})


def agreement_table(runs: Runs) -> Iterator[Table]:
    """Yield how often an agreement is right, and how many errors it lets through."""

    def share(row: Checked, flags: pd.Series) -> Estimate | None:
        """Return the share of true values in percent. None if it is not known of an answer whether it is right."""
        return None if row[2].right.isna().any() else runs.share(row[0], flags)

    columns: list[Column[Checked]] = [
        *name_columns(runs, lambda row: row[0]),
        Column("check", "text", 0, lambda row: row[1]),
        Column("n", "count", 0, lambda row: len(row[2])),
        Column("agree", "brief", 1, lambda row: runs.share(row[0], row[2].agree)),
        Column("precision", "percent", 1, lambda row: share(row, row[2].right[row[2].agree])),
        Column("base rate", "percent", 1, lambda row: share(row, row[2].right)),
        Column("recall", "brief", 1, lambda row: share(row, row[2].agree[row[2].right == 1])),
        Column("errors\naccepted", "brief", 1, lambda row: share(row, row[2].agree[row[2].right == 0])),
    ]
    return table(
        "agreement",
        "Agreement, in percent",
        columns,
        [row for run in runs.traced() for row in checked(runs, run)],
        (
            "Check: the exit of the answers that agree, and that a model is sure of, if the stop asks. Precision: "
            "right answers of those; in the paper's method they are the large model's short ones. Base rate: the same "
            "without any check. Recall: accepted right answers. Errors accepted: of the wrong ones.",
        ),
    )


# --- harm and rescue ---

Changed = tuple[Run, pd.DataFrame]
"""A cascade or Full RT, and its transferred answers (`transferred`)."""


def transferred(runs: Runs, run: Run) -> pd.DataFrame | None:
    """Return whether the transferred answers of a cascade or of Full RT are right (`after`), and the large model's
    short answers `before` them. None: the short answers are not known."""
    before = runs.large_short_scores(run)
    if before.isna().any():
        return None
    answers = pd.DataFrame({"after": run.samples.score >= RIGHT, "before": before >= RIGHT})
    exits = [stop.exit for stop in run.setup.method.stops if stop.answer.endswith(".transfer")]
    return answers[run.samples.exit.isin(exits)]


def harm_table(runs: Runs) -> Iterator[Table]:
    """Yield how many documents the transfer wins and loses against the large model's short answer."""

    def p(row: Changed) -> float:
        after, before = (metrics.plain(row[1][name]) for name in ("after", "before"))
        comparison = metrics.compare(after, before, "", runs.clusters(row[0]))
        return 1.0 if comparison is None else comparison.p

    def after(row: Changed, before: bool) -> pd.Series:
        """Return whether the transferred answers are right whose short answer was right, or wrong."""
        return row[1].after[row[1].before == before]

    columns: list[Column[Changed]] = [
        *name_columns(runs, lambda row: row[0]),
        Column("n", "count", 0, lambda row: len(row[1])),
        Column("lost", "count", 0, lambda row: int((~after(row, True)).sum())),
        Column("harm", "percent", 1, lambda row: runs.share(row[0], ~after(row, True))),
        Column("won", "count", 0, lambda row: int(after(row, False).sum())),
        Column("rescue", "percent", 1, lambda row: runs.share(row[0], after(row, False))),
        Column("net", "count", 0, lambda row: int(row[1].after.sum()) - int(row[1].before.sum())),
        Column("p", "p", 0, p),
        Column("lost by\nchecks", "count", 0, lambda row: _lost_by_checks(runs, row[0])),
    ]
    changing = [*runs.traced(), *runs.of("full_rt")]
    changed = [(run, answers) for run in changing if (answers := transferred(runs, run)) is not None]
    return table(
        "harm-and-rescue",
        "Harm and rescue: what the transfer changes against the large model's short answer",
        columns,
        [row for row in changed if len(row[1]) or row[0].setup.kind == "cascade"],
        (
            "n: transferred answers. Harm: lost, in percent of the right short answers. Rescue: won, in percent of the "
            "wrong ones. Lost by checks: wrong answers that passed a check and that Full RT has right.",
        ),
    )


def _lost_by_checks(runs: Runs, run: Run) -> int | None:
    """Return the number of answers that passed a check of a cascade, that are wrong, and that Full RT has right. None:
    there is no Full RT beside a cascade."""
    full_rt, checks = runs.full_rt(run), [stop.exit for stop in run.setup.method.stops if stop.agree or stop.sure]
    if run.setup.kind == "full_rt" or full_rt is None:
        return None
    own, other = runs.common(run, full_rt)
    return int((own.exit.isin(checks) & (own.score < RIGHT) & (other.score >= RIGHT)).sum())
