"""Runs what is missing of a plan: the engines of each pair start once and serve all its runs.

A run is the evaluation that a single lmms-eval command makes, with its output folder, in this process.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lmms_eval import utils
from lmms_eval.__main__ import parse_eval_args
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.loggers import EvaluationTracker
from loguru import logger

from lmms_eval_mai.analysis.reproduce.folder import OutputFolder
from lmms_eval_mai.analysis.reproduce.plan import Options, Run
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.harness.model import CascadeModel
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.store import Store


def run_all(runs: Sequence[Run], tasks: Any, options: Options, folder: OutputFolder) -> None:
    """Make all runs that are not finished. `tasks`: lmms-eval's task manager. Raises a `MaiError`; then the same call
    continues."""
    missing = [run for run in runs if not folder.is_finished(run)]
    if not missing:
        return
    store = Store(folder.path / "calls")
    try:
        for _, of_models in groupby(missing, key=lambda run: run.models.name):
            _run_models(list(of_models), tasks, options, folder, store)
    finally:
        store.close()


def _run_models(runs: Sequence[Run], tasks: Any, options: Options, folder: OutputFolder, store: Store) -> None:
    models = runs[0].models
    engines = Engines(models.config)
    try:
        used = {side for run in runs for side in run.kind.method.sides}
        engines.run(engines.start([side for side in SIDES if side in used]))
        gc.freeze()  # lmms-eval collects garbage twice after each run, in 0.9 s with all objects of vLLM
        for number, run in enumerate(runs, start=1):
            logger.info(f"Run {number} of {len(runs)} of {models.name}: {run.name}.")
            engines.clear_caches()
            store.run = run.name
            model = CascadeModel(engines, parse(models.arguments_of(run.kind.method)), store=store, prints_table=False)
            evaluate(run, model, tasks, _parse(options.command(run, folder.begin(run))))
            folder.finish(run)
    finally:
        gc.unfreeze()
        engines.stop()


def evaluate(run: Run, model: CascadeModel, tasks: Any, given: argparse.Namespace) -> None:
    """Make a run and write its files, as `cli_evaluate_single` of lmms-eval's command does (lmms_eval/__main__.py),
    but with a model whose engines are up. `given`: the options of the equivalent command."""
    tracker = EvaluationTracker(output_path=given.output_path)
    time = utils.get_datetime_str(timezone=given.timezone)
    results = simple_evaluate(
        model=model,
        model_args=given.model_args,
        tasks=[run.task],
        batch_size=given.batch_size,
        limit=given.limit,
        log_samples=True,
        evaluation_tracker=tracker,
        gen_kwargs=given.gen_kwargs,
        task_manager=tasks,
        verbosity=given.verbosity,
        cli_args=given,
        datetime_str=time,
        distributed_executor_backend="accelerate",
    )
    assert results is not None  # this is the only rank
    samples = results.pop("samples")
    tracker.general_config_tracker.model_source = results["config"]["model"] = MODEL_ID  # it got a model object
    # `harness/saved.py` checks the files: lmms-eval only logs a warning if it cannot write.
    tracker.save_results_aggregated(results=results, samples=samples, datetime_str=time)
    tracker.save_results_samples(task_name=run.task, samples=samples[run.task])


def _parse(command: Sequence[str]) -> argparse.Namespace:
    """Return what lmms-eval's command reads from these arguments, with its defaults."""
    given, sys.argv = sys.argv, ["lmms-eval", *command]  # the function reads the arguments of the process
    try:
        options: argparse.Namespace = parse_eval_args()[1]
    finally:
        sys.argv = given
    return options
