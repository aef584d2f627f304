"""The first documents of a task, opened and scored as an evaluation does it, for `lmms-eval-mai attention`."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from loguru import logger

from lmms_eval_mai.attention.table9 import Scored
from lmms_eval_mai.cli.document import load_task
from lmms_eval_mai.cli.findings import error_text
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.config import Config


class TaskDocuments:
    """The first documents of one task of lmms-eval, under the contract of `attention.analysis.Documents`."""

    def __init__(self, name: str, limit: int | None, gen_kwargs: Mapping[str, Any], include_path: str | None) -> None:
        """Load the task and its data set, which takes seconds. Raises `ArgumentError`."""
        from lmms_eval_mai.harness.requests import task_of

        self._task = load_task(name, gen_kwargs, include_path)
        self.name: str = self._task.config.task
        self._task.build_all_requests(limit=limit, rank=0, world_size=1)
        # A task may make several requests of a document.
        self._requests: dict[int, Any] = {}
        for request in self._task.instances:
            self._requests.setdefault(request.args[3], request)
        if not self._requests:
            raise ArgumentError(f"Task {name} has no documents.")
        first = next(iter(self._requests.values()))
        prompt = task_of(first)
        self._own_task = prompt.variant is not None
        self.two_stage = prompt.two_stage
        self.decoding: Mapping[str, Any] = first.args[2]
        if not self._own_task and first.request_type == "generate_until_multi_round":
            raise ArgumentError(f"Task {name} has rounds of its own, which mai_cascade does not support.")

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the documents."""
        return list(self._requests)

    def keep(self, targets: Mapping[int, str]) -> None:
        """Keep the documents of an earlier run. `targets`: number of the document -> the right answer that the run
        logged. Raises `ArgumentError` if this data set has other answers."""
        docs = self._task.eval_docs_no_media
        for number, target in targets.items():
            found = self._task.doc_to_target(docs[number]) if number in self._requests else None
            if str(found) != target:  # lmms-eval writes all of them as texts
                raise ArgumentError(
                    f"Document {number} of {self.name} is not the one of the run: its right answer is {found} and was "
                    f"{target}. Use the data set of the run."
                )
        self._requests = {number: self._requests[number] for number in targets}

    def check(self, config: Config) -> None:
        """Refuse what the run cannot do. Raises `ArgumentError`."""
        from lmms_eval_mai.harness.requests import check_stages
        from lmms_eval_mai.run.decoding import sampling

        check_stages(config.mode, [self.name] if self.two_stage else [])
        sampling(self.decoding, config, own_task=self._own_task)

    def open(self, number: int, config: Config) -> Sample:
        """Return the sample of a document. Raises a `SampleError`."""
        from lmms_eval_mai.harness.requests import open_sample

        return open_sample(self._requests[number], 0, {self.name: self._task.dataset}, config)

    def score(self, method: str, texts: Mapping[int, str]) -> Scored:
        """Score the answers of one method with the task's own scorer. `texts`: number of the document -> answer."""
        requests = [self._requests[number] for number in texts]
        for request, text in zip(requests, texts.values(), strict=True):
            # As in `harness.results.result`: the filters of other lmms-eval tasks cannot read [[...]].
            request.resps = [text if self._own_task or method == "simple" else extract_answer(text)]
            request.filtered_resps = {}
        self._task._instances = requests
        self._task.apply_filters()
        docs = self._task.eval_docs_no_media
        found: list[Mapping[str, Any]] = []
        for number, request in zip(texts, requests, strict=True):
            filtered = next(iter(request.filtered_resps.values()))
            try:
                found.append(self._task.process_results(docs[number], [filtered]))
            except Exception as error:  # a scorer of another task may need a service
                raise ArgumentError(
                    f"The scorer of task {self.name} failed on document {number} ({error_text(error).rstrip('.')}). "
                    "Choose another task for --table9."
                ) from error
        return Scored(_numbers(self.name, found), self._metrics(found))

    def _metrics(self, found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the task's metrics over these documents. Metrics that are not single numbers are left out."""
        metrics = {}
        for name, aggregate in self._task.aggregation().items():
            if "args" in inspect.signature(aggregate).parameters:  # it writes files to lmms-eval's folder of results
                continue
            try:
                value = aggregate([one[name] for one in found])
            except Exception as error:
                logger.debug(f"{self.name}: metric {name} cannot be computed: {error_text(error)}")
                continue
            if isinstance(value, int | float):
                metrics[name] = float(value)
        return metrics


def _numbers(task: str, found: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return one number per document: `score` if the scorer returns it, else the first metric that is a number. Raises
    `ArgumentError`."""
    for name in ("score", *found[0]):
        values = [one.get(name) for one in found]
        numbers = [one.get("score") if isinstance(one, Mapping) else one for one in values]
        if all(isinstance(number, int | float) for number in numbers):
            return [float(number or 0) for number in numbers]
    raise ArgumentError(f"The scorer of task {task} returns no number per document. Choose another task for --table9.")
