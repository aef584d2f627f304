"""Makes the planned runs: the engines of each pair start once and serve all its runs.

A run is the evaluation that a single lmms-eval command makes, with its output folder, in this process. The call store
has the calls of a run that was stopped; if calls are shared, also those of the other runs.
"""

import argparse
import gc
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import datasets
from lmms_eval import evaluator, utils
from lmms_eval.__main__ import parse_eval_args
from lmms_eval.api import task as task_module
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.loggers import EvaluationTracker
from loguru import logger
from tqdm import tqdm

from lmms_eval_mai.analysis import documents
from lmms_eval_mai.analysis.compare.plan import Options, PlannedRun
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.model import CascadeModel
from lmms_eval_mai.harness.requests import read_requests
from lmms_eval_mai.plugin import MODEL_ID, RESULTS
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.store import Store


def load_tasks(runs: Sequence[PlannedRun], options: Options, gen_kwargs: Mapping[str, Any]) -> Any:
    """Load each task with its documents, and check its runs. Returns lmms-eval's task manager, which serves all runs.
    Takes seconds. Raises `ArgumentError`."""
    datasets.disable_progress_bars()
    for module in (evaluator, task_module):  # lmms-eval's progress bars are two lines for each run, and last a second
        module.tqdm = lambda *things, **given: tqdm(*things, **{**given, "disable": True})
    names = dict.fromkeys(run.task for run in runs)
    manager = documents.task_manager(names, options.include_path)
    for name in names:
        task = documents.load_task(name, manager, gen_kwargs)
        task.build_all_requests(limit=1, rank=0, world_size=1)
        for run in (run for run in runs if run.task == name):
            config = parse(run.models.arguments_of(run.method))
            (request,) = read_requests(task.instances[:1], config)  # refuses what cannot work
            if not run.models.tables and request.variant not in (None, "S"):
                raise ArgumentError(
                    f"--tasks {name} has the prompt of {request.variant}, but each method chooses its prompts: give "
                    f"{request.benchmark.name}_s. With --model_args think=E, thinking has the prompt E."
                )
    return manager


def run_all(runs: Sequence[PlannedRun], tasks: Any, options: Options, output: Path, shares_calls: bool) -> None:
    """Make these runs. `tasks`: lmms-eval's task manager. `output`: the folder of all runs. `shares_calls`: whether a
    run takes the calls that another one has made. Raises a `MaiError`; then the same call with the runs that are not
    finished continues."""
    store = Store(output / "calls", shares_calls=shares_calls)
    try:
        for _, model_runs in groupby(runs, key=lambda run: run.models.name):
            _run_models(list(model_runs), tasks, options, output, store)
    finally:
        store.close()


def _run_models(runs: Sequence[PlannedRun], tasks: Any, options: Options, output: Path, store: Store) -> None:
    models = runs[0].models
    engines = Engines(models.config)
    try:
        used = {side for run in runs for side in run.method.sides}
        engines.run(engines.start([side for side in SIDES if side in used]))
        gc.freeze()  # lmms-eval collects garbage twice after each run, in 0.9 s with all objects of vLLM
        for number, run in enumerate(runs, start=1):
            logger.info(f"Run {number} of {len(runs)} of {models.name}: {run.name}.")
            engines.clear_caches()
            store.run_name = run.name
            model = CascadeModel(engines, parse(models.arguments_of(run.method)), store)
            unfinished, folder = output / "unfinished", output / run.name
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            _evaluate(run, model, tasks, _parse(options.command(run, unfinished)), folder)
            files = filter(Path.is_file, unfinished.rglob("*"))
            for file in sorted(files, key=lambda file: file.name.endswith(RESULTS)):  # a results file finishes the run
                target = folder / file.relative_to(unfinished)
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
            shutil.rmtree(unfinished)
    finally:
        gc.unfreeze()
        engines.stop()


def _evaluate(run: PlannedRun, model: CascadeModel, tasks: Any, given: argparse.Namespace, folder: Path) -> None:
    """Make a run and write its files, as `cli_evaluate_single` of lmms-eval's command does (lmms_eval/__main__.py),
    but with a model whose engines are up. `given`: the options of the equivalent command. `folder`: where the files
    will be."""
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
    results["config"]["resolved_cli_args"]["output_path"] = str(folder)
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
