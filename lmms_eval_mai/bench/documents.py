"""The samples of a run: from drawn documents, or from those of a task. They can be passed to another process."""

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

from lmms_eval.api.instance import Instance

from lmms_eval_mai.bench.drawn import PROMPT, SPLIT, TASK, Charts
from lmms_eval_mai.bench.lengths import Plan
from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.harness.tasks import doc_to_messages
from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.config import Config, parse


class Source(Protocol):
    """Opens the samples of a task by their position."""

    @property
    def task(self) -> str:
        """Name of the task, for lmms-eval."""

    @property
    def include_path(self) -> str | None:
        """A folder with more tasks, for lmms-eval."""

    def count(self) -> int:
        """Return the number of documents."""

    def open(self, position: int, config: Config) -> Sample:
        """Open the sample. Blocks: run it in a thread. Raises a `SampleError`."""


@dataclass(frozen=True)
class DrawnSource:
    """Drawn charts with the Reasoning prompt of ChartQA."""

    charts: Charts
    task: str = TASK
    include_path: str | None = None

    def count(self) -> int:
        return len(self.charts.files)

    def open(self, position: int, config: Config) -> Sample:
        """Open a sample with the code of a run."""
        messages = functools.partial(doc_to_messages, lmms_eval_specific_kwargs=PROMPT)
        request = Instance(
            request_type="generate_until",
            arguments=("", messages, {"max_new_tokens": 4096, "temperature": 0}, position, TASK, SPLIT),
            idx=0,
            metadata={"task": TASK, "doc_id": position, "repeats": 1, "mai": PROMPT},
        )
        return open_sample(request, 0, {TASK: {SPLIT: self.charts}}, config)


@dataclass(frozen=True)
class Documents:
    """The documents of one run, with the plan of their answers."""

    source: Source
    count: int
    plan: Plan | None
    """None: the models end their answers themselves."""
    arguments: dict[str, Any]
    """Model arguments, from which the decoding follows."""

    def first(self, count: int) -> "Documents":
        """Return the first documents only."""
        return dataclasses.replace(self, count=min(count, self.count))

    def open(self, position: int) -> Sample:
        """Open a sample. With a plan, two answers agree if their texts are equal. Blocks: run it in a thread."""
        sample = self.source.open(position, self._config)
        if self.plan is None:
            return sample
        rules = dataclasses.replace(GENERIC, name=sample.benchmark.name)
        return dataclasses.replace(
            sample, doc_id=position, doc={}, benchmark=rules, variant="R", two_stage=False, own_prompt=()
        )

    def facts(self) -> dict[str, Any]:
        """Return the properties on which the times depend, as plain data: how many documents there are, the width and
        height of a drawn image in px, and how many documents have each planned exit."""
        found: dict[str, Any] = {"documents": self.count}
        if isinstance(self.source, DrawnSource):
            found["image_px"] = list(self.source.charts[0]["image"].size)
        if self.plan is not None:
            found["exits"] = dict(Counter(self.plan.exits))
        return found

    @functools.cached_property
    def _config(self) -> Config:
        return parse(self.arguments)
