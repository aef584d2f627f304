"""Reports: from finished runs to two frames of samples and calls, and to tables.

`read(folders)` reads lmms-eval's output folders, and returns all samples and all calls as two pandas frames. It is
public (docs/reports.md). `build.report(folders)` returns a `Report`: tables and gaps as plain data. `formats.py` writes
it for the terminal, as Markdown, CSV, LaTeX or JSON.

    folders.py         output folders -> runs, each with a table of its samples and a table of its calls
    rows.py            one line of a samples file
    setups.py          how a run answers: method, models, prompt and options, from its first trace
    metrics.py         scores, differences and costs with their intervals
    replay.py          what a method would have done with the calls of finished runs
    runs.py            the runs by benchmark and setup, and what two runs have in common
    summary.py         the four tables of every report
    rules.py           other methods, thresholds and rules of agreement
    paper_tables.py    Tables 5 to 8, 10, 11 and 13 to 15
    seconds.py         the time of calls one after another (Eq. 27)
    paper_numbers.py   the paper's numbers (`paper_numbers.csv`, `paper_numbers.yaml`)
    losses.py          what a method loses against a baseline at each threshold
    calibrate.py       the choice of the threshold
    labels.py          gold answers of the documents that need one to choose it
    traces.py          answers of a server, without a task of lmms-eval
    report.py          `Report`, `Table`, `Estimate`
    page.py            the same as an HTML page, with score over tokens and all samples (`page.html.jinja`, `page.js`)

A table is a list of columns, each with its heading, its kind, its digits, and the function that gives a cell from a
row. To add a table, write a function that gets the `Runs` and yields tables, and list it in `build.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from lmms_eval_mai.frames import Frames
    from lmms_eval_mai.reports.folders import Run

__all__ = ["read"]

KEYS = ("benchmark", "method", "name", "small", "large", "run")
"""The first columns of both frames, which name a run. The others are `frames.SAMPLES` and `frames.CALLS`."""


def read(folders: "Sequence[Path | str]") -> "Frames":
    """Return the samples and the calls of all runs in the folders and in their subfolders.

    `method` is that of the run; empty if another model class of lmms-eval made it. A model alone has its name in the
    column of its side. `name` is the name that reports use, and `run` the results file. Raises `ArgumentError` if a
    folder does not exist, or if there is no run in them.
    """
    import pandas as pd  # takes a second

    from lmms_eval_mai.frames import Frames
    from lmms_eval_mai.reports import build

    runs = build.read([Path(folder) for folder in folders])
    every = [*(run for run in runs.runs.values() if not run.derived), *runs.unused]
    samples = [_with_keys(run, runs.name(run.setup), run.samples.reset_index()) for run in every]
    calls = [_with_keys(run, runs.name(run.setup), run.calls) for run in every]
    return Frames(*(pd.concat(parts, ignore_index=True) for parts in (samples, calls)))


def _with_keys(run: "Run", name: str, data: "pd.DataFrame") -> "pd.DataFrame":
    setup, method = run.setup, run.setup.method.name if run.ours else ""
    if setup.kind == "alone" and len(run.calls):
        method = str(run.calls.side.iloc[0])
    small, large = (setup.model, "") if method == "small" else (setup.small, setup.model)
    keys = (run.benchmark, method, name, small, large, str(run.file))
    return data.assign(**dict(zip(KEYS, keys, strict=True)))[[*KEYS, *data]]
