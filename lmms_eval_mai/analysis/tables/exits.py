"""The table "By exit": how good a method is where it stops, and what the others have answered there."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pandas as pd

from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs, name_columns

OTHERS = ("large S", "Full RT", "large R")
"""The methods whose answers stand beside those of an exit (`Runs.baselines`)."""
OTHER_SCORES = {"pope": "F1", "mmbench_en_dev": "questions with all rotations right"}
"""Benchmarks whose score is not a mean over documents."""


class AtExit(NamedTuple):
    """The documents of a run that finish at an exit."""

    run: FinishedRun
    exit: str
    samples: pd.DataFrame
    others: dict[str, FinishedRun | None]


def at_exits(runs: Runs, run: FinishedRun) -> Iterator[AtExit]:
    """Yield each exit of a run."""
    others = runs.baselines(run)
    for exit in dict.fromkeys(run.setup.method.exits):
        yield AtExit(run, exit, run.samples[run.samples.exit == exit], others)


def scores_there(row: AtExit, name: str) -> pd.Series | None:
    """Return the scores of another method on the documents of an exit; missing where it has another gold answer. None:
    there is no run of this method."""
    other = row.others.get(name)
    if other is None:
        return None
    answers = other.samples.reindex(row.samples.index)
    return answers.score.where(answers.target == row.samples.target)


def exit_table(runs: Runs) -> Iterator[Table]:
    """Yield the score of each method at each exit, and those of the others on the same documents."""

    def there(name: str, row: AtExit) -> Estimate | None:
        scores = scores_there(row, name)
        return None if scores is None else runs.mean_score(row.run.benchmark, scores)

    columns: list[Column[AtExit]] = [
        *name_columns(runs, lambda row: row.run),
        Column("exit", "text", 0, lambda row: row.exit),
        Column("n", "count", 0, lambda row: len(row.samples)),
        Column("share", "percent", 1, lambda row: runs.exit_share(row.run, row.exit)),
        Column("score", "percent", 1, lambda row: runs.mean_score(row.run.benchmark, row.samples.score)),
        *(Column(f"{name}\nthere", "percent", 1, partial(there, name)) for name in OTHERS),
    ]
    stopping = (run for benchmark in runs.benchmarks() for run in runs.stopping(benchmark))
    rows = [row for run in stopping for row in at_exits(runs, run)]
    different = [name for name in OTHER_SCORES if any(row.run.benchmark == name for row in rows)]
    notes = [
        f"{benchmark_name(name)}: scores of this table are the accuracy of single documents, not {OTHER_SCORES[name]}."
        for name in different
    ]
    if any(row.run.setup.variant is None for row in rows):
        notes.append("On a task that is not of this package, large S is its own prompt.")
    title = "By exit: where each method stops, and the scores there, in %"
    return table("exits", title, columns, rows, notes)
