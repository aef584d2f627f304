"""Runs the analysis: the calls of all documents on the engines of a run, then the heads of the large model.

Everything is on the disk before it is used: the calls in a store, and what was read of each document in a file. The
same command after an interruption, or with another part of the analysis, repeats none of them.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from lmms_eval_mai.attention import drawing, figures, heads, results, table9
from lmms_eval_mai.attention.calls import AnalysisCalls, LoggedThinking
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation, layers_of
from lmms_eval_mai.run.progress import progress_bar
from lmms_eval_mai.run.totals import version


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of the analysis."""

    figures: bool = False
    """Figures 3, 4 and 5 and Table 16."""
    table9: bool = False
    layers: tuple[int, ...] | None = None
    """The layers of Table 9. None: all."""
    seed: int = 0
    """Seed of the random tokens."""

    def sides(self, config: Config, logged: LoggedThinking | None) -> set[Side]:
        """Return the models whose calls are needed."""
        thinking: set[Side] = {side for side in SIDES if logged is None or logged.writer != side}
        return thinking | {"large", config.sparse_from} if self.table9 else thinking


class Documents(Protocol):
    """The documents of one task: `harness.documents.TaskDocuments` with the scores of Table 9."""

    name: str
    decoding: Mapping[str, Any]

    @property
    def numbers(self) -> list[int]: ...
    def open(self, number: int, config: Config) -> Sample: ...
    def score(self, method: str, texts: Mapping[int, str]) -> table9.Scored: ...


def run(
    config: Config, parts: Parts, tasks: Sequence[Documents], folder: Path, logged: LoggedThinking | None = None
) -> Iterator[str]:
    """Run the analysis, write its files to a subfolder for each task, and return texts for the terminal.

    `config` must have mode=transfer and transfer=sparse. `logged`: the thinking of an earlier run, which must have all
    documents of the tasks. Raises a `MaiError`.
    """
    reader = heads.HeadReader(config.large) if parts.figures else None
    calls = _make_calls(config, parts, tasks, logged)
    for task in tasks:
        own = folder / task.name
        results.start(own, _settings(config, parts, task, logged))
        if parts.table9:
            answers = {number: found for (name, number), found in sorted(calls.answers.items()) if name == task.name}
            rows, answered = table9.rows(answers, task.score)
            results.write(own, {"table9": rows, "table9_documents": answered})
            drawing.draw_table9(own, rows)
            yield f"{task.name}: {table9.text(rows)}"
    if reader is None:
        return
    with reader.running():
        for task in tasks:
            own = folder / task.name
            readings = _read_heads(reader, config, task, calls, own / "documents")
            tables = figures.tables(readings, config.sparse_delta)
            results.write(own, tables)
            drawing.draw_figures(own, tables, config.sparse_delta)
            yield f"{task.name}: {figures.text(tables['figure3'], config.sparse_delta)}"


def _make_calls(
    config: Config, parts: Parts, tasks: Sequence[Documents], logged: LoggedThinking | None
) -> AnalysisCalls:
    """Make the calls of all documents. The engines are stopped then, so that their memory is free for the next step."""
    calls = AnalysisCalls(own_thinking=parts.figures, seed=parts.seed, logged=logged)
    if parts.table9:
        calls.layers = _layers(parts.layers, config)
    evaluation = Evaluation(Engines(config, parts.sides(config, logged)), config, mode=calls)
    samples = [(task, number) for task in tasks for number in task.numbers]
    try:
        outcomes = evaluation.answer(
            [(task.name, number, 0) for task, number in samples],
            lambda index: samples[index][0].open(samples[index][1], config),
            {task.name: task.decoding for task in tasks},
        )
    finally:
        evaluation.stop()
    for task in tasks:
        if not any(isinstance(one, Trace) for one, (owner, _) in zip(outcomes, samples, strict=True) if owner is task):
            raise SampleError(f"No document of {task.name} was answered.")
    return calls


def _layers(wanted: tuple[int, ...] | None, config: Config) -> tuple[int, ...]:
    """Return the layers of Table 9. Raises `ArgumentError` if the model does not have one of them."""
    side = config.sparse_from
    depth = layers_of(config.small if side == "small" else config.large)
    layers = wanted or tuple(range(1, depth + 1))
    for layer in layers:
        if not 1 <= layer <= depth:
            raise ArgumentError(f"--layers {layer} is invalid: the {side} model has the layers 1 to {depth}.")
    return layers


def _read_heads(
    reader: heads.HeadReader, config: Config, task: Documents, calls: AnalysisCalls, folder: Path
) -> dict[int, dict[Side, figures.Reading]]:
    """Return how the thinking of both models is read, for all documents that have both. Documents that fail are left
    out with a warning, as many as `max_errors` allows. Raises a `SampleError` if more fail."""
    found, failed, delta = {}, 0, config.sparse_delta
    thinkings = {number: one for (name, number), one in calls.thinkings.items() if name == task.name}
    todo = [number for number in sorted(thinkings) if all(thinkings[number].get(side) for side in SIDES)]
    allowed = config.max_errors if config.max_errors >= 1 else config.max_errors * len(todo)
    origin = [version("lmms-eval-mai"), reader.identity(), prompts.digest(), delta]
    with progress_bar(len(todo), shown=True) as bar:
        for number in todo:
            path, of_document = folder / f"{number}.parquet", json.dumps([*origin, thinkings[number]], sort_keys=True)
            readings = heads.load(path, of_document)
            try:
                if readings is None:
                    sample = task.open(number, config)
                    readings = {side: reader.read(sample, thinkings[number][side], delta) for side in SIDES}
                    heads.save(path, of_document, number, readings)
                found[number] = readings
            except SampleError as error:
                failed += 1
                if failed > allowed:
                    raise
                logger.warning(f"mai_cascade: sample failed and is left out: {error}")
            bar.update()
    if not found:
        raise SampleError(f"No document of {task.name} has thinking of both models.")
    return found


def _settings(config: Config, parts: Parts, task: Documents, logged: LoggedThinking | None) -> dict[str, Any]:
    names = ("sparse_from", "transfer_answer")
    return {
        "version": version("lmms-eval-mai"),
        "task": task.name,
        "documents": len(task.numbers),
        "run": logged.source if logged is not None else None,
        "engines": {one.side: {"engine": one.engine, "model": without_password(one.model)} for one in config.engines()},
        "delta": config.sparse_delta,
        "seed": parts.seed,
    } | {name: getattr(config, name) for name in names}
