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
    data.py            `read`
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

    from lmms_eval_mai.frames import Frames

__all__ = ["read"]


def read(folders: "Sequence[Path | str]") -> "Frames":
    """Return the samples and the calls of all runs in the folders and in their subfolders (`data.read`)."""
    from lmms_eval_mai.reports import data  # pandas takes a second

    return data.read(folders)
