"""What the command prints: the runs, the equivalent commands and the tables."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.folders import Run as Result
from lmms_eval_mai.reports.formats import markdown, markdown_table
from lmms_eval_mai.reports.report import Of, Report, table
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.reports.summary import spent
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


def summary(runs: Sequence[Run], folder: OutputFolder, results: Runs) -> str:
    """Return one row for each run whose answers are the large model's: its score, and its output tokens per document.
    The pair and the task are named only if there are several."""
    found = [
        (run, one, spent(results, one))
        for run in sorted(runs, key=lambda run: (run.models.name, run.subject.name))
        for one in results.runs.values()
        if run.method.mode != "small" and folder.place(run) in one.file.parents and not one.derived
    ]
    columns: list[Of[tuple[Run, Result, dict[str, float | None]]]] = [
        Of("run", "text", 0, lambda row: f"{row[0].models.name}, {row[0].subject.name}"),
        Of("method", "text", 0, lambda row: row[0].method.title.replace("large, ", "large ")),
        Of("score %", "percent", 1, lambda row: results.score(row[1])),
        Of("small model's tokens", "number", 1, lambda row: row[2]["small_tokens"]),
        Of("large model's tokens", "number", 1, lambda row: row[2]["large_tokens"]),
    ]
    is_single = len({(run.models.name, run.subject.name) for run in runs}) == 1
    return markdown_table(next(table("summary", "Summary", columns[is_single:], found)))


def chosen_tables(report: Report, chosen: Collection[int]) -> str:
    """Return the chosen tables of a report."""
    keys = {key for number in chosen for key in TABLES[number]}
    tables = tuple(table for table in report.tables if table.key in keys)
    gaps = tuple(gap for gap in report.gaps if gap != build.NO_CASCADE)
    return markdown(replace(report, tables=tables, gaps=gaps))
