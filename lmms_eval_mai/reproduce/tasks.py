"""The tasks of the command: loads them as lmms-eval does, and refuses those that the runs cannot answer."""

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
from lmms_eval_mai.reproduce.subjects import Subject
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling


class Tasks:
    """Loads tasks of lmms-eval. The task manager serves all runs."""

    def __init__(self, benchmarks: Sequence[str], others: Sequence[str], include_path: str | None) -> None:
        """Find the tasks, which takes seconds. Raises `ArgumentError`."""
        for name in benchmarks:
            if name not in BENCHMARKS:
                hint = did_you_mean(name, BENCHMARKS)
                known = ", ".join(BENCHMARKS)
                raise ArgumentError(f"--benchmarks {name} is unknown: choose from {known}.{hint}")
        if others or include_path:
            install()  # makes our tasks visible
            self.manager = TaskManager(include_path=include_path, model_name=MODEL_ID)
        else:  # a second instead of ten
            self.manager = TaskManager(include_path=str(task_dir()), include_defaults=False, model_name=MODEL_ID)
        self._benchmarks, self._others = benchmarks, others
        for name in others:
            self._check_name(name)

    def subjects(self, configs: Sequence[Config], gen_kwargs: Mapping[str, Any], limit: int | None) -> list[Subject]:
        """Load one task of each subject and check it. Raises `ArgumentError`."""
        ours = [self._subject(name, f"{name}_s", configs, gen_kwargs, limit) for name in self._benchmarks]
        return [*ours, *(self._subject(name, name, configs, gen_kwargs, limit) for name in self._others)]

    def _check_name(self, name: str) -> None:
        if name not in self.manager.all_tasks:
            hint = did_you_mean(name, self._other_tasks()) or " `lmms-eval --tasks list` shows all tasks."
            raise ArgumentError(f"{name} is unknown to lmms-eval.{hint}")
        if not self._is_task(name):
            raise ArgumentError(f"{name} is a group of tasks: give the names of its tasks.")

    def _is_task(self, name: str) -> bool:
        return self.manager.task_index[name]["type"] not in ("group", "tag")

    def _other_tasks(self) -> list[str]:
        """Return the names of all tasks but those of our benchmarks, which `--tasks` refuses."""
        ours = {f"{benchmark}_{suffix}" for benchmark in BENCHMARKS for suffix in VARIANTS}
        return [name for name in self.manager.all_tasks if name not in ours and self._is_task(name)]

    def _subject(
        self, name: str, task_name: str, configs: Sequence[Config], gen_kwargs: Mapping[str, Any], limit: int | None
    ) -> Subject:
        task = self._load(task_name)
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
        variant = task_of(request).variant
        if variant is not None and name == task_name:
            benchmark = task_of(request).benchmark.name
            raise ArgumentError(f"Task {name} is one of the benchmark {benchmark}: give --benchmarks {benchmark}.")
        _check_image(name, request, task, configs[0])
        decoding = [sampling(request.args[2], config, own_task=variant is not None) for config in configs]
        return Subject(
            name=name,
            benchmark=None if variant is None else name,
            documents=min(documents, limit or documents),
            samples=any(stage.temperature > 0 for stages in decoding for stage in stages.values()),
        )

    def _load(self, name: str) -> Any:
        try:
            return get_task_dict([name], self.manager, task_type="chat")[name]
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
