"""Runs what is missing of a plan: the engines of each pair start once and serve all its runs."""

import dataclasses
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.harness.model import CascadeModel
from lmms_eval_mai.reproduce.evaluation import evaluate
from lmms_eval_mai.reproduce.folder import OutputFolder
from lmms_eval_mai.reproduce.plan import Models, Options, Run
from lmms_eval_mai.reproduce.sharing import SharedCalls, SharingEngine
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.engines import Engines


def run_all(runs: Sequence[Run], tasks: Any, options: Options, folder: OutputFolder) -> None:
    """Make all runs that are not finished. `tasks`: lmms-eval's task manager. Raises a `MaiError`; then the same call
    continues."""
    missing = [run for run in runs if not folder.is_finished(run)]
    if not missing:
        return
    calls = SharedCalls(folder.calls)
    try:
        for _, of_models in groupby(missing, key=lambda run: run.models.name):
            _run_models(list(of_models), tasks, options, folder, calls)
        folder.clean_up()
    finally:
        calls.close()


def _run_models(runs: Sequence[Run], tasks: Any, options: Options, folder: OutputFolder, calls: SharedCalls) -> None:
    """Make the runs of one pair."""
    models = runs[0].models
    engines = Engines(_config(models, "cascade", folder))
    try:
        modes = {run.method.mode for run in runs}
        engines.start([side for side in SIDES if modes - {*SIDES} or side in modes])
        for number, run in enumerate(runs, start=1):
            logger.info(f"Run {number} of {len(runs)} of {models.name}: {run.method.title} on {run.task}.")
            engines.clear_caches()
            calls.run = run.name
            config = _config(models, run.method.mode, folder)
            model = CascadeModel(engines, config, share=lambda engine: SharingEngine(engine, calls))
            evaluate(run, model, tasks, options, folder.begin(run), folder.place(run))
            folder.finish(run)
            model.remove_journal()  # the results are on the disk
    finally:
        engines.stop()


def _config(models: Models, mode: str, folder: OutputFolder) -> Config:
    """Return the configuration of a run. Its journal is in the output folder."""
    return dataclasses.replace(parse(models.of_mode(mode)), journal=str(folder.journal))
