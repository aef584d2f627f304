"""Loads the task of each benchmark as lmms-eval does, and refuses tasks that the runs cannot answer."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lmms_eval.tasks import TaskManager, get_task_dict

from lmms_eval_mai.contract import Image
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.harness.requests import open_sample, task_of
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.paper.prompts import VARIANTS
from lmms_eval_mai.plugin import MODEL_ID, install, task_dir
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.reproduce.plan import Subject
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling


def task_manager(benchmarks: Sequence[str], others: Sequence[str], include_path: str | None) -> Any:
    """Return lmms-eval's task manager, which serves all runs. Takes seconds. `benchmarks`: of our tasks. `others`:
    other tasks. Raises `ArgumentError` if there is no such benchmark or task."""
    for name in benchmarks:
        if name not in BENCHMARKS:
            hint = did_you_mean(name, BENCHMARKS)
            raise ArgumentError(f"--benchmarks {name} is unknown: choose from {', '.join(BENCHMARKS)}.{hint}")
    if not others and not include_path:  # a second instead of ten
        return TaskManager(include_path=str(task_dir()), include_defaults=False, model_name=MODEL_ID)
    install()  # makes our tasks visible
    manager = TaskManager(include_path=include_path, model_name=MODEL_ID)
    groups = {name for name in manager.all_tasks if manager.task_index[name]["type"] in ("group", "tag")}
    ours = {f"{benchmark}_{suffix}" for benchmark in BENCHMARKS for suffix in VARIANTS}
    for name in others:
        if name not in manager.all_tasks:
            known = [task for task in manager.all_tasks if task not in groups | ours]
            hint = did_you_mean(name, known) or " `lmms-eval --tasks list` shows all tasks."
            raise ArgumentError(f"{name} is unknown to lmms-eval.{hint}")
        if name in groups:
            raise ArgumentError(f"{name} is a group of tasks: give the names of its tasks.")
    return manager


def subject(
    name: str, is_ours: bool, manager: Any, configs: Sequence[Config], gen_kwargs: Mapping[str, Any], limit: int | None
) -> Subject:
    """Load a benchmark of ours or another task and check it. `configs`: of each pair. Raises `ArgumentError`."""
    task = _load(f"{name}_s" if is_ours else name, manager)
    if str(task.get_config("output_type")) != "generate_until":
        raise ArgumentError(
            f"Task {name} is of type {task.get_config('output_type')}. Choose tasks whose output_type is "
            "generate_until."
        )
    if gen_kwargs:
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    documents = len(task.eval_docs_no_media)
    if not documents:
        raise ArgumentError(f"Task {name} has no documents.")
    task.build_all_requests(limit=1, rank=0, world_size=1)
    request = task.instances[0]
    if task_of(request).variant is not None and not is_ours:
        benchmark = task_of(request).benchmark.name
        raise ArgumentError(f"Task {name} is one of the benchmark {benchmark}: give --benchmarks {benchmark}.")
    _check_image(name, request, task, configs[0])
    for config in configs:
        sampling(request.args[2], config, own_task=is_ours)  # refuses decoding arguments that cannot work
    return Subject(name, name if is_ours else None, min(documents, limit or documents))


def _load(name: str, manager: Any) -> Any:
    try:
        return get_task_dict([name], manager, task_type="chat")[name]
    except Exception as error:
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        cause = error_text(error).rstrip(".")
        raise ArgumentError(f"Task {name} cannot be loaded ({cause}).{offline}") from error


def _check_image(name: str, request: Any, task: Any, config: Config) -> None:
    """Refuse a task whose first document has no image, or has something else than texts and images."""
    try:
        sample = open_sample(request, 0, {request.args[4]: task.dataset}, config)
    except SampleError as error:
        raise ArgumentError(f"Task {name} cannot be answered: {error}") from error
    if not any(isinstance(part, Image) for message in sample.question for part in message.content):
        raise ArgumentError(f"The questions of task {name} have no images. Choose a task with images.")
