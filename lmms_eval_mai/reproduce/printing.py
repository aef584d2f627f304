"""What the command prints: the runs, the equivalent commands, the tables, and how many calls were shared."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.formats import markdown
from lmms_eval_mai.reproduce.folder import OutputFolder
from lmms_eval_mai.reproduce.methods import TABLES
from lmms_eval_mai.reproduce.plan import Options, Run


def plan(runs: Sequence[Run], folder: OutputFolder) -> str:
    """Return one line for each run."""
    width = max(len(run.name) for run in runs)
    return "\n".join(
        f"{run.name:{width}}  {run.method.title}, {run.subject.documents:,} documents"
        + (", finished" if folder.is_finished(run) else "")
        for run in runs
    )


def commands(runs: Sequence[Run], options: Options, folder: OutputFolder) -> str:
    """Return the lmms-eval commands that make the same runs, one on each line."""
    return "\n".join(shlex.join(["lmms-eval", *options.command(run, folder.place(run), shown=True)]) for run in runs)


def chosen_tables(folder: Path, chosen: Collection[int]) -> str:
    """Return the chosen tables of the report on a folder. Raises `ArgumentError` if the folder has no run."""
    report = build.report([folder])
    keys = {key for number in chosen for key in TABLES[number]}
    tables = tuple(table for table in report.tables if table.key in keys)
    gaps = tuple(gap for gap in report.gaps if gap != build.NO_CASCADE)
    return markdown(replace(report, tables=tables, gaps=gaps))


def shared_calls(runs: Sequence[Run], folder: OutputFolder) -> str:
    """Return how many calls the finished runs have, and how many of them were made."""
    calls, shared = (sum(column) for column in zip(*map(folder.count_calls, runs), strict=True))
    return (
        f"The single commands of these {len(runs)} runs make {calls:,} calls. {calls - shared:,} were made here "
        f"({(calls - shared) / max(1, calls):.2f}), and the runs share all others."
    )
