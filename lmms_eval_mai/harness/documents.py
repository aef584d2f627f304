"""Tasks of lmms-eval and their documents, loaded, opened and scored as an evaluation with this model does it.

For the commands that answer documents without lmms-eval's evaluator. lmms-eval's tasks are imported at the first use:
that takes ten seconds, and wrong arguments should be refused before.
"""

import inspect
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.requests import check_stages, fields_of, open_sample, task_of
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.plugin import MODEL_ID, install, task_dir
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.decoding import sampling


def task_manager(names: Collection[str], include_path: str | None = None) -> Any:
    """Return lmms-eval's `TaskManager` for these tasks. lmms-eval's own tasks are read only if neither the folder of
    the user nor this package has files of these names. Raises `ArgumentError` for an unknown name and for a group."""
    from lmms_eval.tasks import TaskManager

    for folder in (include_path, str(task_dir())):
        if folder and {path.stem for path in Path(folder).rglob("*.yaml")} >= set(names):
            manager = TaskManager(include_path=folder, include_defaults=False, model_name=MODEL_ID)
            break
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
    except Exception as error:
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ArgumentError(f"Task {name} cannot be loaded ({error_text(error).rstrip('.')}).{offline}") from error
    if "generate_until" not in str(task.get_config("output_type")):
        raise ArgumentError(f"Task {name} has no questions that a model answers with a text. Choose another task.")
    if gen_kwargs:
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    return task


class TaskDocuments:
    """The documents of one task, or some of them."""

    def __init__(
        self,
        name: str,
        limit: int | None = None,
        gen_kwargs: Mapping[str, Any] | None = None,
        include_path: str | None = None,
        first: int = 0,
    ) -> None:
        """Load the task and its data set, which takes seconds. `limit` and `first`: how many documents, and from which
        number on. Raises `ArgumentError`."""
        self.task = load_task(name, task_manager([name], include_path), gen_kwargs)
        self.name: str = self.task.config.task
        count = len(self.task.eval_docs_no_media)
        if not count:
            raise ArgumentError(f"Task {name} has no documents.")
        if first >= count:
            raise ArgumentError(f"Task {name} has no document {first}: it has {count:,}, from 0 to {count - 1:,}.")
        self.task.build_all_requests(limit=limit, offset=first, rank=0, world_size=1)
        self._requests: dict[int, Any] = {}
        for request in self.task.instances:
            # A task may make several requests of a document.
            self._requests.setdefault(fields_of(request).doc_id, request)
        request = next(iter(self._requests.values()))
        prompt = task_of(request)
        self.own_task = prompt.variant is not None
        """Whether it is one of our tasks."""
        self.two_stage = prompt.two_stage
        self.decoding: Mapping[str, Any] = fields_of(request).gen_kwargs
        """The decoding arguments of the task, with those of the user."""
        if not self.own_task and request.request_type == "generate_until_multi_round":
            raise ArgumentError(f"Task {name} has rounds of its own, which mai_cascade does not support.")

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the documents."""
        return list(self._requests)

    def target(self, number: int) -> str:
        """Return the right answer of a document, as lmms-eval writes it."""
        return str(self.task.doc_to_target(self.task.eval_docs_no_media[number]))

    def keep(self, targets: Mapping[int, str]) -> None:
        """Keep the documents of an earlier run. `targets`: number of the document -> the right answer that the run
        logged. Raises `ArgumentError` if this data set has other answers."""
        for number, target in targets.items():
            found = self.target(number) if number in self._requests else None
            if found != target:
                raise ArgumentError(
                    f"Document {number} of {self.name} is not the one of the run: its right answer is {found} and was "
                    f"{target}. Use the data set of the run."
                )
        self._requests = {number: self._requests[number] for number in targets}

    def check(self, config: Config) -> None:
        """Refuse what a run with this configuration cannot do. Raises `ArgumentError`."""
        check_stages(config.mode, [self.name] if self.two_stage else [])
        sampling(self.decoding, config, own_task=self.own_task)

    def open(self, number: int, config: Config) -> Sample:
        """Return the sample of a document. Blocks: run it in a thread. Raises a `SampleError`."""
        return open_sample(self._requests[number], 0, {self.name: self.task.dataset}, config)

    def results(self, answers: Mapping[int, Any]) -> Iterator[Mapping[str, Any]]:
        """Score answers with the task's own filters and scorer. `answers`: number of the document -> answer; of a
        two-stage task, the answers of all rounds. Yields the scorer's result for each document, and raises its
        errors."""
        requests = [self._requests[number] for number in answers]
        for request, answer in zip(requests, answers.values(), strict=True):
            request.resps, request.filtered_resps = [answer], {}
        self.task._instances = requests
        self.task.apply_filters()
        for number, request in zip(answers, requests, strict=True):
            filtered = next(iter(request.filtered_resps.values()))
            yield self.task.process_results(self.task.eval_docs_no_media[number], [filtered])

    def metrics(self, results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the task's metrics over these documents. Metrics that are not single numbers are left out."""
        metrics = {}
        for name, aggregate in self.task.aggregation().items():
            if "args" in inspect.signature(aggregate).parameters:  # it writes files to lmms-eval's folder of results
                continue
            try:
                value = aggregate([result[name] for result in results])
            except Exception as error:
                logger.debug(f"{self.name}: metric {name} cannot be computed: {error_text(error)}")
                continue
            if isinstance(value, int | float):
                metrics[name] = float(value)
        return metrics
