"""What the command prints: the plan, the equivalent lmms-eval commands, and the tables at the end."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.formats import markdown
from lmms_eval_mai.reproduce import tables
from lmms_eval_mai.reproduce.estimate import TimeEstimate
from lmms_eval_mai.reproduce.folder import OutputFolder
from lmms_eval_mai.reproduce.options import Options
from lmms_eval_mai.reproduce.plan import Count, Run


def plan(runs: Sequence[Run], folder: OutputFolder, estimate: TimeEstimate | None = None) -> str:
    """Return the plan for people: one row for each run, and the sums of the calls and of their estimated time."""
    rows = []
    for run in runs:
        finished = folder.is_finished(run)
        made = "finished" if finished else str(run.made)
        row = [run.name, run.method.title, f"{run.subject.documents:,}", str(run.needed), made]
        if estimate is not None:
            row.append("" if finished else str(estimate.of_run(run) or ""))
        rows.append(row)
    writer = MarkdownTableWriter()
    writer.headers = ["Run", "Method", "Documents", "Calls", "Calls to make"]
    if estimate is not None:
        writer.headers = [*writer.headers, "Estimated s"]
    writer.value_matrix = rows
    writer.type_hints = ["str"] * len(writer.headers)
    needed, made_here = (sum((getattr(run, name) for run in runs), Count()) for name in ("needed", "made"))
    lines = [
        writer.dumps(),
        f"The {len(runs)} single commands make {needed} calls. This command makes {made_here} of them once, and runs "
        "share all others.",
    ]
    missing = [run for run in runs if not folder.is_finished(run)]
    if len(missing) < len(runs):
        most = sum(run.made.most for run in missing)
        lines.append(f"{len(runs) - len(missing)} runs are finished. The others make at most {most:,} calls.")
    if any(run.needed.least < run.needed.most for run in runs):
        lines.append("The calls of MAI depend on the answers: the second number is the largest possible one.")
    if sampled := sorted({run.subject.name for run in runs if run.subject.samples}):
        lines.append(f"The answers to {', '.join(sampled)} are sampled (temperature above 0), so no calls are shared.")
    if estimate is not None:
        lines += estimate.sentences(missing)
    return "\n".join(lines)


def commands(runs: Sequence[Run], options: Options, folder: OutputFolder) -> str:
    """Return the lmms-eval commands that make the same runs, one on each line."""
    return "\n".join(shlex.join(["lmms-eval", *options.command(run, folder.place(run), shown=True)]) for run in runs)


def chosen_tables(folder: Path, chosen: Collection[int]) -> str:
    """Return the chosen tables of the report on a folder. Raises `ArgumentError` if it has no run."""
    found = build.report([folder])
    keys = {key for number in chosen for key in tables.TABLES[number]}
    not_asked_for = {needs for _, needs in build.TABLES} | {build.NO_CASCADE}
    shown = replace(
        found,
        tables=tuple(table for table in found.tables if table.key in keys),
        gaps=tuple(gap for gap in found.gaps if gap not in not_asked_for),
    )
    return markdown(shown)
