"""What the command prints before its runs: the runs, and the equivalent commands."""

import shlex
from collections.abc import Sequence

from lmms_eval_mai.reproduce.folder import OutputFolder
from lmms_eval_mai.reproduce.plan import Options, Run


def plan(runs: Sequence[Run], folder: OutputFolder) -> str:
    """Return one line for each run."""
    width = max(len(run.name) for run in runs)
    return "\n".join(
        f"{run.name:{width}}  {run.subject.documents:,} documents" + (", finished" if folder.is_finished(run) else "")
        for run in runs
    )


def commands(runs: Sequence[Run], options: Options, folder: OutputFolder) -> str:
    """Return the lmms-eval commands that make the same runs, one on each line."""
    return "\n".join(shlex.join(["lmms-eval", *options.command(run, folder.place(run), shown=True)]) for run in runs)
