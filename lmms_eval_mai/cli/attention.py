"""`lmms-eval-mai attention`: the analysis of Section 5.3 and Appendix B.7 on the documents of lmms-eval tasks."""

import argparse
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from lmms_eval_mai.attention.analysis import Parts
from lmms_eval_mai.attention.analysis import run as analyse
from lmms_eval_mai.attention.calls import LoggedThinking
from lmms_eval_mai.attention.drawing import check_installed
from lmms_eval_mai.attention.table9 import Scored
from lmms_eval_mai.cli import finished_run
from lmms_eval_mai.cli.finished_run import FinishedRun
from lmms_eval_mai.cli.terminal import check_at_least_one, log_to_terminal, names_of, refuse, values_of
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.reports.rows import score_of_line
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.decoding import check_conflict

OWN = {"mode": "transfer", "transfer": "sparse", "sparse_layer": 1}
"""Model arguments of the analysis. The layer is not used: layer 1 exists in every model."""
SET_HERE = {
    "mode": "the analysis sets it itself",
    "transfer": "the analysis sets it itself",
    "sparse_layer": "--layers chooses the layers of Table 9",
}
"""Model arguments that the command sets itself, and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", help="a named pair, as in the model arguments")
    parser.add_argument("--tasks", metavar="TASKS", help="tasks of lmms-eval, separated by commas")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="lmms-eval's output folder of a finished run with --log_samples, or the results file in it: its thinking, "
        "documents, tasks, models and arguments are used",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N documents of each task (default: all)")
    parser.add_argument("--output_path", required=True, type=Path, metavar="FOLDER", help="the folder of the results")
    parser.add_argument("--figures", action="store_true", help="Figures 3, 4 and 5 and Table 16 (the default)")
    parser.add_argument("--table9", action="store_true", help="Table 9 by layer, with two controls")
    parser.add_argument("--layers", metavar="LAYERS", help="the layers of Table 9, e.g. 4,8,12 (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random tokens in Table 9 (default: 0)")
    parser.add_argument("--include_path", help="a folder with more tasks, as in lmms-eval")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments (format as in lmms-eval)")


AFTER_INTERRUPT = "The same command continues."


def main(given: argparse.Namespace) -> None:
    log_to_terminal()
    for text in _run(given):
        print(f"\n{text}", flush=True)
    print(f"\nFigures and tables are in {given.output_path}.")


def _run(given: argparse.Namespace) -> Iterator[str]:
    check_installed()
    check_at_least_one(given, "limit")
    finished = finished_run.read(given.run) if given.run is not None else None
    arguments = values_of("--model_args", given.model_args)
    refuse(arguments, SET_HERE)
    if given.pair is not None:
        arguments["pair"] = given.pair
    if finished is not None:
        arguments = finished.model_arguments(arguments)
    config = parse({"store": str(given.output_path / "store"), **arguments, **OWN})
    gen_kwargs: Mapping[str, Any] = values_of("--gen_kwargs", given.gen_kwargs)
    if finished is not None:
        finished.check(config)
        if gen_kwargs:
            raise ArgumentError("--gen_kwargs has no effect with --run: those of the run are used. Leave it out.")
        gen_kwargs = finished.gen_kwargs
    check_conflict(gen_kwargs, config)
    layers = _layers(given.layers)
    if given.layers is not None and not given.table9:
        raise ArgumentError(f"--layers {given.layers} has no effect without --table9: give --table9 too.")
    tasks, logged = _tasks(given, gen_kwargs, finished)
    for task in tasks:
        task.check(config)
    parts = Parts(given.figures or not given.table9, given.table9, layers, given.seed)
    yield from analyse(config, parts, tasks, given.output_path, logged)


def _tasks(
    given: argparse.Namespace, gen_kwargs: Mapping[str, Any], finished: FinishedRun | None
) -> tuple[list["ScoredDocuments"], LoggedThinking | None]:
    """Load the tasks. Returns them with the thinking of the finished run. Raises `ArgumentError`."""
    if finished is None:
        names = names_of(given.tasks)
        if not names:
            raise ArgumentError("Give --tasks TASKS, or --run FOLDER.")
        return [ScoredDocuments(name, given.limit, gen_kwargs, given.include_path) for name in names], None
    tasks: list[ScoredDocuments] = []
    texts: dict[tuple[str, int], str] = {}
    for name in names_of(given.tasks) or finished.runs:
        found = finished.thinking(name, given.limit)
        texts |= {(name, number): text for number, (text, _) in found.items()}
        include_path = given.include_path or finished.include_path
        tasks.append(ScoredDocuments(name, max(found) + 1, gen_kwargs, include_path))
        tasks[-1].keep({number: target for number, (_, target) in found.items()})
    return tasks, LoggedThinking(finished.thinker, texts, finished.results.name)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None or text == "all":
        return None
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ArgumentError(f"--layers {text} is invalid: expected numbers such as 4,8,12, or all.") from None


class ScoredDocuments(TaskDocuments):
    """Documents whose answers Table 9 scores (`attention.analysis.Documents`)."""

    def keep(self, targets: Mapping[int, str]) -> None:
        """Keep the documents of an earlier run. `targets`: number of the document -> the right answer that the run
        logged. Raises `ArgumentError` if this data set has other answers."""
        for number, target in targets.items():
            found = self.target(number) if number in self.numbers else None
            if found != target:
                raise ArgumentError(
                    f"Document {number} of {self.name} is not the one of the run: its right answer is {found} and was "
                    f"{target}. Use the data set of the run."
                )
        self._requests = {number: self._requests[number] for number in targets}

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

    def score(self, method: str, texts: Mapping[int, str]) -> Scored:
        """Score the answers of one method with the task's own scorer. `texts`: number of the document -> answer. Raises
        `ArgumentError`."""
        # As in `harness.results.result`: the filters of other lmms-eval tasks cannot read [[...]].
        if not self.own_task and method != "simple":
            texts = {number: extract_answer(text) for number, text in texts.items()}
        try:
            results = list(self.results(texts))
        except Exception as error:  # a scorer of another task may need a service
            raise ArgumentError(
                f"The scorer of task {self.name} failed ({error_text(error).rstrip('.')}). Choose another task for "
                "--table9."
            ) from error
        return Scored(_numbers(self.name, results), self.metrics(results))


def _numbers(task: str, results: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return one number per document: its score from 0 to 1 if it is known, else the first metric that is a number.
    Raises `ArgumentError`."""
    scores = [score for result in results if (score := score_of_line(dict(result))) is not None]
    if len(scores) == len(results):
        return scores
    for name in results[0]:
        values = [result.get(name) for result in results]
        numbers = [value.get("score") if isinstance(value, Mapping) else value for value in values]
        if all(isinstance(number, int | float) for number in numbers):
            return [float(number or 0) for number in numbers]
    raise ArgumentError(f"The scorer of task {task} returns no number per document. Choose another task for --table9.")
