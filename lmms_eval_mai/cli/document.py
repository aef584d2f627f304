"""One document of a task, opened and scored as an evaluation does it, for `lmms-eval-mai ask --tasks`."""

import os
from collections.abc import Mapping
from typing import Any

from lmms_eval_mai.cli.findings import error_text
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.run.config import Config


class Document:
    """One document of a task of lmms-eval, and its request."""

    def __init__(self, name: str, doc_id: int, gen_kwargs: Mapping[str, Any], include_path: str | None) -> None:
        """Load the task and its data set, which takes seconds. Raises `ArgumentError`."""
        from lmms_eval_mai.harness.requests import task_of

        self._task = load_task(name, gen_kwargs, include_path)
        self.name: str = self._task.config.task
        count = len(self._task.test_docs() if self._task.has_test_docs() else self._task.validation_docs())
        if doc_id >= count:
            raise ArgumentError(f"Task {name} has no document {doc_id}: it has {count:,}, from 0 to {count - 1:,}.")
        self._task.build_all_requests(limit=1, offset=doc_id, rank=0, world_size=1)
        self._request: Any = self._task.instances[0]
        self._task._instances = [self._request]  # a task may make several requests of a document
        prompt = task_of(self._request)
        self.own_task = prompt.variant is not None
        self.two_stage = prompt.two_stage
        if not self.own_task and self._request.request_type == "generate_until_multi_round":
            raise ArgumentError(f"Task {name} has rounds of its own, which mai_cascade does not support.")

    @property
    def decoding(self) -> Mapping[str, Any]:
        """Return the decoding arguments of the task, with those of the user."""
        arguments: Mapping[str, Any] = self._request.args[2]
        return arguments

    def open(self, config: Config) -> Sample:
        """Return the sample. Raises a `SampleError`."""
        from lmms_eval_mai.harness.requests import open_sample

        return open_sample(self._request, 0, {self.name: self._task.dataset}, config)

    def score(self, trace: Trace) -> str:
        """Return the metrics of an answer and the right answer, as one text."""
        from lmms_eval_mai.harness.results import result, rounds_result

        doc = self._task.dataset[self._request.args[5]][self._request.args[3]]
        answered = rounds_result(trace) if self.two_stage else result(trace, self.own_task)
        try:
            self._request.resps = [answered.text]
            self._task.apply_filters()
            (filtered, *_) = self._request.filtered_resps.values()
            found = self._task.process_results(doc, [filtered])
            metrics = ", ".join(f"{name}={_shown(value)}" for name, value in found.items())
            return f"{metrics}; the right answer is {self._task.doc_to_target(doc)}"
        except Exception as error:  # a scorer of another task may need a service
            return f"the task's scorer failed ({error_text(error).rstrip('.')})."


def _shown(value: Any) -> str:
    """Return a metric as a short text. Many tasks of lmms-eval put it into a dict with other fields."""
    if isinstance(value, Mapping) and "score" in value:
        value = value["score"]
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def load_task(name: str, gen_kwargs: Mapping[str, Any], include_path: str | None) -> Any:
    """Return a task with questions, as lmms-eval loads it for this model. Takes seconds. Raises `ArgumentError`."""
    task = _load(name, include_path)
    if "generate_until" not in str(task.get_config("output_type")):
        raise ArgumentError(f"Task {name} has no questions that a model answers with a text. Choose another task.")
    if gen_kwargs:
        task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
    return task


def _load(name: str, include_path: str | None) -> Any:
    """Return the task as lmms-eval loads it for this model. Raises `ArgumentError`."""
    from lmms_eval.tasks import get_task_dict

    from lmms_eval_mai.harness.task_manager import task_manager

    manager = task_manager(name, include_path)
    if name not in manager.all_tasks:
        hint = did_you_mean(name, manager.all_tasks) or " `lmms-eval --tasks list` shows all tasks."
        raise ArgumentError(f"{name} is unknown to lmms-eval.{hint}")
    if manager.task_index[name]["type"] in ("group", "tag"):
        raise ArgumentError(f"{name} is a group of tasks: give the name of one task.")
    try:
        return get_task_dict([name], manager, task_type="chat")[name]
    except Exception as error:
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ArgumentError(f"Task {name} cannot be loaded ({error_text(error).rstrip('.')}).{offline}") from error
