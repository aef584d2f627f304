"""The documents of `lmms-eval-mai bench`: drawn charts, or the first documents of a task."""

import argparse
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.bench.documents import Source
    from lmms_eval_mai.cli.task_documents import TaskDocuments
    from lmms_eval_mai.paper.sample import Sample
    from lmms_eval_mai.run.config import Config

_LOADING = threading.Lock()
MEGAPIXELS = 0.26
"""512 x 512 px: 256 tokens of Qwen3-VL, as in the paper's Tables 3 and 4."""


def source_of(given: argparse.Namespace, forced: bool) -> "Source":
    """Return the documents. Raises `ArgumentError`."""
    if given.task is None:
        if given.include_path is not None:
            raise ArgumentError("--include_path has no effect without --task: give --task too.")
        from lmms_eval_mai.bench.documents import DrawnSource
        from lmms_eval_mai.bench.drawn import Charts

        megapixels = MEGAPIXELS if given.megapixels is None else given.megapixels
        if not 0 < megapixels <= 100:
            raise ArgumentError(f"--megapixels {megapixels} is invalid: expected a number above 0 and up to 100.")
        return DrawnSource(Charts.draw(max(given.samples, given.single_samples), megapixels))
    if given.megapixels is not None:
        raise ArgumentError(
            "--megapixels is for drawn charts, and --task has images of its own: leave one of them out."
        )
    source = TaskSource(given.task, max(given.samples, given.single_samples), given.include_path)
    if not forced and source.variant != "R":
        raise ArgumentError(
            f"Task {given.task} has no Reasoning prompt, and the rows need it without forced lengths: give a task that "
            "ends in _r, or --lengths paper:chartqa."
        )
    return source


@dataclass(frozen=True)
class TaskSource:
    """The first documents of a task. Another process loads the task again."""

    task: str
    limit: int
    include_path: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskSource, (self.task, self.limit, self.include_path)

    @property
    def variant(self) -> str | None:
        """Return the prompt of the task: S, E or R. None: the own prompt of another task."""
        return self.open(0, None).variant

    def count(self) -> int:
        return len(self._documents().numbers)

    def open(self, position: int, config: "Config | None") -> "Sample":
        from lmms_eval_mai.run.config import parse

        documents = self._documents()
        return documents.open(documents.numbers[position], parse({}) if config is None else config)

    def _documents(self) -> "TaskDocuments":
        """Return the documents. Raises `ArgumentError`."""
        with _LOADING:  # threads open samples, and lmms-eval cannot load a task twice at once
            if "_loaded" not in self.__dict__:
                from lmms_eval_mai.cli.task_documents import TaskDocuments

                self.__dict__["_loaded"] = TaskDocuments(self.task, self.limit, {}, self.include_path)
        loaded: TaskDocuments = self.__dict__["_loaded"]
        return loaded
