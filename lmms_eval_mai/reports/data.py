"""The public function `read`: all samples and all calls in some output folders, as two pandas frames."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lmms_eval_mai.frames import Frames
from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.runs import Runs

KEYS = ("benchmark", "method", "name", "small", "large", "run")
"""The first columns of both frames, which name a run. The others are `frames.SAMPLES` and `frames.CALLS`."""


def read(folders: Sequence[Path | str]) -> Frames:
    """Return the samples and the calls of all runs in the folders and in their subfolders.

    `method` is that of the run; empty if another model class of lmms-eval made it. A model alone has its name in the
    column of its side. `name` is the name that reports use, and `run` the results file. Raises `ArgumentError` if a
    folder does not exist, or if there is no run in them.
    """
    runs = build.read([Path(folder) for folder in folders])
    every = [*(run for run in runs.runs.values() if not run.derived), *runs.unused]
    samples = [_with_keys(runs, run, run.samples.reset_index()) for run in every]
    calls = [_with_keys(runs, run, run.calls) for run in every]
    return Frames(*(pd.concat(parts, ignore_index=True) for parts in (samples, calls)))


def _with_keys(runs: Runs, run: Run, data: pd.DataFrame) -> pd.DataFrame:
    setup, method = run.setup, run.setup.method.name if run.ours else ""
    if setup.kind == "alone" and len(run.calls):
        method = str(run.calls.side.iloc[0])
    small, large = (setup.model, "") if method == "small" else (setup.small, setup.model)
    keys = (run.benchmark, method, runs.name(setup), small, large, str(run.file))
    return data.assign(**dict(zip(KEYS, keys, strict=True)))[[*KEYS, *data]]
