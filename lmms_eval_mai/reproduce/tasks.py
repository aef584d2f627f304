"""Loads the task of each benchmark as lmms-eval does, and refuses tasks that the runs cannot answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import lmms_eval.api.task
import lmms_eval.evaluator
from datasets import disable_progress_bars
from tqdm import tqdm

from lmms_eval_mai.contract import Image
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.harness import documents
from lmms_eval_mai.harness.requests import fields_of, open_sample, task_of
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.reproduce.plan import Subject
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling


class HiddenBar(tqdm):
    """A progress bar that is never shown."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "disable": True})


def hide_progress_bars() -> None:
    """Hide the progress bars of lmms-eval and datasets in this process. Ours stays."""
    disable_progress_bars()
    for module in (lmms_eval.api.task, lmms_eval.evaluator):
        vars(module)["tqdm"] = HiddenBar


def task_manager(benchmarks: Sequence[str], others: Sequence[str], include_path: str | None) -> Any:
    """Return lmms-eval's task manager, which serves all runs. Takes seconds. `benchmarks`: of our tasks. `others`:
    other tasks. Raises `ArgumentError` if there is no such benchmark or task."""
    for name in benchmarks:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS)
            raise ArgumentError(f"--benchmarks {name} is unknown: choose from {', '.join(BENCHMARKS)}.{hint}")
    ours = [f"{benchmark}_{suffix}" for benchmark in benchmarks for suffix in VARIANTS]
    return documents.task_manager([*ours, *others], include_path)


def subject(
    name: str, is_ours: bool, manager: Any, configs: Sequence[Config], gen_kwargs: Mapping[str, Any], limit: int | None
) -> Subject:
    """Load a benchmark of ours or another task and check it. `configs`: of each pair. Raises `ArgumentError`."""
    task = documents.load_task(f"{name}_s" if is_ours else name, manager, gen_kwargs)
    if str(task.get_config("output_type")) != "generate_until":
        raise ArgumentError(
            f"Task {name} is of type {task.get_config('output_type')}. Choose tasks whose output_type is "
            "generate_until."
        )
    count = len(task.eval_docs_no_media)
    if not count:
        raise ArgumentError(f"Task {name} has no documents.")
    task.build_all_requests(limit=1, rank=0, world_size=1)
    request = task.instances[0]
    if task_of(request).variant is not None and not is_ours:
        benchmark = task_of(request).benchmark.name
        raise ArgumentError(f"Task {name} is one of the benchmark {benchmark}: give --benchmarks {benchmark}.")
    try:
        sample = open_sample(request, 0, {fields_of(request).task: task.dataset}, configs[0])
    except SampleError as error:
        raise ArgumentError(f"Task {name} cannot be answered: {error}") from error
    if not any(isinstance(part, Image) for message in sample.question for part in message.content):
        raise ArgumentError(f"The questions of task {name} have no images. Choose a task with images.")
    for config in configs:
        # This refuses decoding arguments that cannot work.
        sampling(fields_of(request).gen_kwargs, config, own_task=is_ours)
    return Subject(name, name if is_ours else None, min(count, limit or count))
