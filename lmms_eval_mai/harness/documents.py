"""Documents of lmms-eval's tasks, opened and scored as an evaluation with this model does it, for the commands.

lmms-eval's tasks are imported at the first use: that takes ten seconds, and wrong arguments should be refused before.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.requests import check_task, fields_of, open_sample, task_of
from lmms_eval_mai.method.trace import Sample
from lmms_eval_mai.plugin import MODEL_ID, install, task_dir
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.run.config import Config


def task_manager(names: Collection[str], include_path: str | None = None) -> Any:
    """Return lmms-eval's `TaskManager` for these tasks. lmms-eval's own tasks are read only if neither the folder of
    the user nor this package has files of these names. Raises `ArgumentError` for an unknown name and for a group."""
    from lmms_eval.tasks import TaskManager

    folders = [folder for folder in (include_path, str(task_dir())) if folder]
    folders = [folder for folder in folders if {path.stem for path in Path(folder).rglob("*.yaml")} >= set(names)]
    if folders:
        manager = TaskManager(include_path=folders[0], include_defaults=False, model_name=MODEL_ID)
    else:
        install()  # makes our tasks visible
        manager = TaskManager(include_path=include_path, model_name=MODEL_ID)
    for name in names:
        if name not in manager.all_tasks:
            hint = did_you_mean(name, manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
            raise ArgumentError(f"{name} is unknown to lmms-eval.{hint}")
        if manager.task_index[name]["type"] in ("group", "tag"):
            raise ArgumentError(f"{name} is a group of tasks: give the name of one task.")
    return manager


def load_task(name: str, manager: Any, gen_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Return a task whose questions a model answers with a text. Takes seconds. Raises `ArgumentError`."""
    from lmms_eval.tasks import get_task_dict

    try:
        task = get_task_dict([name], manager, task_type="chat")[name]
    except Exception as error:  # of any library that loads data
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ArgumentError(f"Task {name} cannot be loaded ({error_text(error).rstrip('.')}).{offline}") from error
    if "generate_until" not in str(task.get_config("output_type")):
        raise ArgumentError(f"Task {name} has no questions that a model answers with a text. Choose another task.")
    if gen_kwargs:
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    return task


class TaskDocuments:
    """The documents of one task, or some of them, by their numbers."""

    def __init__(
        self,
        name: str,
        limit: int | None = None,
        gen_kwargs: Mapping[str, Any] | None = None,
        include_path: str | None = None,
        first: int = 0,
    ) -> None:
        """`limit` and `first`: how many documents, and from which number on. Raises `ArgumentError`."""
        self.task = load_task(name, task_manager([name], include_path), gen_kwargs)
        self.name: str = self.task.config.task
        if first >= (count := len(self.task.eval_docs_no_media)):
            raise ArgumentError(f"Task {name} has no document {first}: it has {count:,} documents, from number 0 on.")
        self.task.build_all_requests(limit=limit, offset=first, rank=0, world_size=1)
        request = self.task.instances[0]
        # A task may make several requests of a document: the first one counts.
        self._requests = {fields_of(request).doc_id: request for request in reversed(self.task.instances)}
        _, variant, self.two_stage = task_of(request)
        self.own_task = variant is not None
        """Whether it is one of our tasks."""
        self.decoding: Mapping[str, Any] = fields_of(request).gen_kwargs
        """The decoding arguments of the task, with those of the user."""

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the documents."""
        return sorted(self._requests)

    def target(self, number: int) -> str:
        """Return the right answer of a document, as lmms-eval writes it."""
        return str(self.task.doc_to_target(self.task.eval_docs_no_media[number]))

    def check(self, config: Config) -> None:
        """Refuse what a run with this configuration cannot do. Raises `ArgumentError`."""
        check_task(next(iter(self._requests.values())), config)

    def open(self, number: int, config: Config) -> Sample:
        """Return the sample of a document. Blocks: run it in a thread. Raises a `SampleError`."""
        return open_sample(self._requests[number], 0, {self.name: self.task.dataset}, config)

    def results(self, answers: Mapping[int, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the scorer's result for each of these answers. `answers`: number of the document -> answer; of a
        two-stage task, the answers of all rounds. Raises the errors of the scorer."""
        self.task._instances = [self._requests[number] for number in answers]
        for request, answer in zip(self.task._instances, answers.values(), strict=True):
            request.resps, request.filtered_resps = [answer], {}
        self.task.apply_filters()
        for number in answers:
            filtered = next(iter(self._requests[number].filtered_resps.values()))
            yield self.task.process_results(self.task.eval_docs_no_media[number], [filtered])
