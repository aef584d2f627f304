"""A finished run in lmms-eval's output folder, for `lmms-eval-mai attention --run`: its command and its thinking.

`reports/read.py` reads the folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.terminal import tell, values_of
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.reports.read import Run, records
from lmms_eval_mai.reports.read import read as read_folders
from lmms_eval_mai.run.config import Config, parse

NOT_TAKEN = ("mode", "verify", "min_confidence", "transfer", "sparse_layer", "store", "model_name")
"""Arguments of the run that the analysis sets itself."""


@dataclass(frozen=True)
class FinishedRun:
    """The files and the arguments of one run."""

    results: Path
    runs: Mapping[str, Run]
    """Task -> its run."""
    arguments: Mapping[str, Any]
    """The model arguments."""
    gen_kwargs: Mapping[str, Any]
    include_path: str | None
    config: Config

    @property
    def thinker(self) -> Side:
        """Return the model whose thinking the run has."""
        return "large" if self.config.mode == "large" else "small"

    def model_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model arguments of the run with those of the command, which have priority. Raises
        `ArgumentError`."""
        is_other = given.get("pair", self.arguments.get("pair")) != self.arguments.get("pair")
        left_out = (*NOT_TAKEN, *SIDES) if is_other else NOT_TAKEN  # the models of a pair are those of its file
        arguments = {name: value for name, value in self.arguments.items() if name not in left_out} | dict(given)
        missing = [side for side in SIDES if side not in arguments]
        if "pair" not in arguments and len(missing) == 1:
            raise ArgumentError(f"{self.results} names no {missing[0]} model: give it with --pair or --model_args.")
        return arguments

    def check(self, config: Config) -> None:
        """Refuse other models or another prompt than those of the run. Raises `ArgumentError`."""
        for engine in self.config.engines():
            used, given = (without_password(one.model or "") for one in (engine, getattr(config, engine.side)))
            if given != used and engine.engine != "openai":  # an endpoint's address does not name its model
                raise ArgumentError(
                    f"The {engine.side} model of {self.results} is {used}, and the arguments name {given}. Leave "
                    "--pair out, or give the same models."
                )
        if config.think != self.config.think:
            raise ArgumentError(f"think={config.think} is given, and {self.results} has think={self.config.think}.")

    def thinking(self, task: str, limit: int | None) -> dict[int, tuple[str, str]]:
        """Return the thinking and the right answer of the first documents with thinking, by number of the document.
        Raises `ArgumentError`."""
        if task not in self.runs:
            raise ArgumentError(f"{self.results} has no samples of {task}, only of {', '.join(self.runs)}.")
        found = {}
        for record in records(self.runs[task]):
            texts = [call["text"] for call in record.calls if (call["side"], call["stage"]) == (self.thinker, "think")]
            if texts:
                found[record.row["doc_id"]] = texts[0], record.row["target"]
        if not found:
            raise ArgumentError(
                f"{self.runs[task].samples_file} has no thinking of the {self.thinker} model (mode={self.config.mode})."
            )
        return {number: found[number] for number in sorted(found)[:limit]}


def read(path: Path) -> FinishedRun:
    """Read a run. `path`: its folder, or its results file. Raises `ArgumentError`."""
    found = read_folders([path])
    files = sorted({run.file for run in found.runs})
    if not files:
        raise ArgumentError(f"--run {path}: {' '.join(found.gaps)}")
    if len(files) > 1:
        names = ", ".join(str(file.relative_to(path)) for file in files)
        raise ArgumentError(f"--run {path}: there are {len(files)} runs. Give one of these files: {names}.")
    results, command = files[0], recorded_command(files[0])
    if command.get("model") != MODEL_ID:
        raise ArgumentError(f"{results} is not the results file of a run of {MODEL_ID}.")
    runs = {run.task: run for run in found.runs if run.samples_file is not None}
    if not runs:
        raise ArgumentError(f"The samples of {results} were not logged. Run it again with --log_samples.")
    for gap in found.gaps:
        tell(gap)
    arguments, gen_kwargs = (_values(command, name) for name in ("model_args", "gen_kwargs"))
    return FinishedRun(results, runs, arguments, gen_kwargs, include_path_of(results), parse(arguments))


def recorded_command(results: Path) -> dict[str, Any]:
    """Return the options of the command that a results file names."""
    return json.loads(results.read_text(encoding="utf-8")).get("config") or {}


def include_path_of(results: Path) -> str | None:
    """Return the folder of the command's own task files, if it had one."""
    found: str | None = (recorded_command(results).get("resolved_cli_args") or {}).get("include_path")
    return found


def _values(command: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Return arguments as a dict. lmms-eval writes them as the user gave them."""
    value = command.get(option)
    return dict(value) if isinstance(value, Mapping) else values_of(f"--{option}", value or "")
