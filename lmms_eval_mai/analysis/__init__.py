"""Looks at finished runs: from lmms-eval's output folders to two frames of samples and calls, to tables, a page and a
threshold. The runner never imports this package; of the commands, only `report`, `calibrate` and `compare` do.

To add a table, write a function that gets the `Runs` and yields tables, and list it in `tables/build.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from lmms_eval_mai.analysis.frames import Frames
    from lmms_eval_mai.analysis.runs.folders import FinishedRun

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

    from lmms_eval_mai.analysis.frames import Frames
    from lmms_eval_mai.analysis.runs.runs import Runs

    runs = Runs.read([Path(folder) for folder in folders])
    every = [*(run for run in runs.runs.values() if not run.is_replay), *runs.unused]
    samples = [_with_keys(run, runs.name(run.setup), run.samples.reset_index()) for run in every]
    calls = [_with_keys(run, runs.name(run.setup), run.calls) for run in every]
    return Frames(*(pd.concat(parts, ignore_index=True) for parts in (samples, calls)))


def _with_keys(run: "FinishedRun", name: str, data: "pd.DataFrame") -> "pd.DataFrame":
    setup, method = run.setup, run.setup.method.name if run.ours else ""
    if setup.family == "alone" and len(run.calls):
        method = str(run.calls.side.iloc[0])
    small, large = (setup.model, "") if method == "small" else (setup.small, setup.model)
    keys = (run.benchmark, method, name, small, large, str(run.file))
    return data.assign(**dict(zip(KEYS, keys, strict=True)))[[*KEYS, *data]]
