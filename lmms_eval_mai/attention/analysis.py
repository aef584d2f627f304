"""Runs the analysis: the calls of all documents on the engines of a run, then the heads of the large model.

Everything is on the disk before it is used: the calls in a journal, and the figures of each document in a file. The
same command after an interruption, or with another part of the analysis, repeats none of them.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from lmms_eval_mai.attention import report
from lmms_eval_mai.attention.calls import AnalysisCalls, LoggedThinking
from lmms_eval_mai.attention.documents import DocumentFigures, FiguresFolder, digest, measure
from lmms_eval_mai.attention.heads import HeadReader
from lmms_eval_mai.attention.table9 import Method, Scored
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.progress import progress_bar
from lmms_eval_mai.run.session import Session


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of the analysis."""

    figures: bool = False
    """Figures 3, 4 and 5 and Table 16."""
    table9: bool = False
    corollary: bool = False
    layers: tuple[int, ...] | None = None
    """The layers of Table 9. None: all."""
    seed: int = 0
    """Seed of the random tokens."""

    @property
    def heads(self) -> bool:
        """Return whether a part needs the states of single heads."""
        return self.figures or self.corollary

    def sides(self, config: Config, logged: LoggedThinking | None) -> set[Side]:
        """Return the models whose calls are needed."""
        thinking: set[Side] = {side for side in SIDES if logged is None or logged.writer != side}
        return thinking | {"large", config.sparse_from} if self.table9 else thinking


class Documents(Protocol):
    """The documents of one task. The analysis does not know lmms-eval."""

    name: str
    decoding: Mapping[str, Any]

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the documents."""

    def open(self, number: int, config: Config) -> Sample:
        """Return the sample of a document. Raises a `SampleError`."""

    def score(self, method: Method, texts: Mapping[int, str]) -> Scored:
        """Score the answers of one method. `texts`: number of the document -> answer. Raises `ArgumentError`."""


def run(
    config: Config, parts: Parts, tasks: Sequence[Documents], folder: Path, logged: LoggedThinking | None = None
) -> Iterator[str]:
    """Run the analysis, write its files to a subfolder for each task, and return texts for the terminal.

    `config` must have mode=transfer and transfer=sparse. `logged`: the thinking of an earlier run, which must have all
    documents of the tasks. Raises a `MaiError`.
    """
    reader = HeadReader(config.large) if parts.heads else None
    calls = _make_calls(config, parts, tasks, logged)
    for task in tasks:
        own = folder / task.name
        own.mkdir(parents=True, exist_ok=True)
        (own / "settings.json").write_text(json.dumps(_settings(config, parts, task, logged), indent=2) + "\n")
        if parts.table9:
            found = {number: one for (name, number), one in calls.answers.items() if name == task.name}
            yield f"{task.name}: {report.write_table9(own, dict(sorted(found.items())), calls.layers, task.score)}"
    if reader is None:
        return
    with reader:
        for task in tasks:
            figures = _read_heads(reader, config, task, calls, folder / task.name / "documents")
            if parts.figures:
                yield f"{task.name}: {report.write_figures(folder / task.name, figures, config.sparse_delta)}"
            if parts.corollary:
                yield f"{task.name}: {report.write_corollary(folder / task.name, figures)}"


def _make_calls(
    config: Config, parts: Parts, tasks: Sequence[Documents], logged: LoggedThinking | None
) -> AnalysisCalls:
    """Make the calls of all documents. The engines are stopped then, so that their memory is free for the next step."""
    calls = AnalysisCalls(own_thinking=parts.heads, seed=parts.seed, logged=logged)
    session = Session(config, calls, parts.sides(config, logged))
    if parts.table9:
        calls.layers = _layers(parts.layers, session.pair, config)
    samples = [(task, number) for task in tasks for number in task.numbers]
    try:
        outcomes = session.run_samples(
            [(task.name, number, 0) for task, number in samples],
            lambda index: samples[index][0].open(samples[index][1], config),
            {task.name: task.decoding for task in tasks},
        )
    finally:
        session.stop()
    for task in tasks:
        if not any(isinstance(one, Trace) for one, (owner, _) in zip(outcomes, samples, strict=True) if owner is task):
            raise SampleError(f"No document of {task.name} was answered.")
    return calls


def _layers(wanted: tuple[int, ...] | None, pair: Pair, config: Config) -> tuple[int, ...]:
    """Return the layers of Table 9. Raises `ArgumentError` if the model does not have one of them."""
    side = config.sparse_from
    depth = (pair.large if side == "large" else pair.small).layers() or 0
    layers = wanted or tuple(range(1, depth + 1))
    for layer in layers:
        if not 1 <= layer <= depth:
            raise ArgumentError(f"--layers {layer} is invalid: the {side} model has the layers 1 to {depth}.")
    return layers


def _read_heads(
    reader: HeadReader, config: Config, task: Documents, calls: AnalysisCalls, folder: Path
) -> dict[int, DocumentFigures]:
    """Return the figures of all documents with thinking of both models. Documents that fail are left out with a
    warning, as many as `max_errors` allows. Raises a `SampleError` if more fail."""
    stored, found, failed = FiguresFolder(folder), {}, 0
    thinkings = {number: one for (name, number), one in calls.thinkings.items() if name == task.name}
    todo = [number for number in sorted(thinkings) if all(thinkings[number].get(side) for side in SIDES)]
    allowed = config.max_errors if config.max_errors >= 1 else config.max_errors * len(todo)
    origin = [fingerprint.version("lmms-eval-mai"), reader.identity(), prompts.digest(), config.sparse_delta]
    with progress_bar(len(todo), shown=True) as bar:
        for number in todo:
            name = digest(origin, thinkings[number])
            figures = stored.load(number, name)
            try:
                if figures is None:
                    figures = _measure(reader, task.open(number, config), thinkings[number], config.sparse_delta)
                    stored.save(number, name, figures)
                found[number] = figures
            except SampleError as error:
                failed += 1
                if failed > allowed:
                    raise
                logger.warning(f"mai_cascade: sample failed and is left out: {error}")
            bar.update()
    if not found:
        raise SampleError(f"No document of {task.name} has thinking of both models.")
    return found


def _measure(reader: HeadReader, sample: Sample, thinkings: Mapping[Side, str], delta: float) -> DocumentFigures:
    read = {side: reader.read(sample, thinkings[side]) for side in SIDES}
    return measure({side: one[0] for side, one in read.items()}, {side: one[1] for side, one in read.items()}, delta)


def _settings(config: Config, parts: Parts, task: Documents, logged: LoggedThinking | None) -> dict[str, Any]:
    """Return what the figures were measured with."""
    return {
        "version": fingerprint.version("lmms-eval-mai"),
        "task": task.name,
        "documents": len(task.numbers),
        "run": logged.source if logged is not None else None,
        "engines": {one.side: {"engine": one.engine, "model": without_password(one.model)} for one in config.engines()},
        "delta": config.sparse_delta,
        "sparse_from": config.sparse_from,
        "sparse_order": config.sparse_order,
        "sparse_boundary": config.sparse_boundary,
        "transfer_answer": config.transfer_answer,
        "seed": parts.seed,
    }
