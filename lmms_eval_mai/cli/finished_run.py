"""A finished run in lmms-eval's output folder: its models, its arguments and the thinking that it logged.

For `lmms-eval-mai attention --run`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.attention.calls import LoggedThinking
from lmms_eval_mai.cli.command_line import values_of
from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run.config import Config, parse

RESULTS = "_results.json"
NOT_TAKEN = ("mode", "transfer", "sparse_layer", "journal", "model_name")
"""Arguments of the run that the analysis sets itself."""


@dataclass(frozen=True)
class FinishedRun:
    """The files and the arguments of one run."""

    results: Path
    arguments: Mapping[str, Any]
    """The model arguments."""
    config: Config
    gen_kwargs: Mapping[str, Any]
    include_path: str | None
    samples: Mapping[str, Path]
    """Task -> the file of its samples."""

    @property
    def thinker(self) -> Side:
        """Return the model whose thinking the run has."""
        return "large" if self.config.mode == "large" else "small"

    def model_arguments(self, pair: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model arguments of the run with those of the command, which have priority. Raises
        `ArgumentError`."""
        arguments = {name: value for name, value in self.arguments.items() if name not in NOT_TAKEN}
        if pair is not None and pair != arguments.get("pair"):  # its models count, and `check` compares them
            arguments = {name: value for name, value in arguments.items() if name not in SIDES} | {"pair": pair}
        arguments |= given
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

    def choose(self, wanted: str | None) -> list[str]:
        """Return the tasks of the run, or those that are wanted. Raises `ArgumentError`."""
        names = list(dict.fromkeys(name for name in (wanted or "").split(",") if name)) or list(self.samples)
        for name in names:
            if name not in self.samples:
                raise ArgumentError(f"{self.results} has no samples of {name}, only of {', '.join(self.samples)}.")
        return names

    def thinking(self, task: str, limit: int | None) -> tuple[dict[int, str], dict[int, str]]:
        """Return the thinking and the right answer of the first documents with thinking, by number of the document.
        Raises `ArgumentError`."""
        texts, targets = {}, {}
        for sample in _lines(self.samples[task]):
            # One entry per request. Null: lmms-eval's response cache answered.
            traces = [trace for trace in sample.get("token_counts") or [] if trace]
            calls = traces[0].get("calls", []) if traces else []
            found = [call["text"] for call in calls if (call["side"], call["stage"]) == (self.thinker, "think")]
            if found:
                texts[int(sample["doc_id"])], targets[int(sample["doc_id"])] = found[0], str(sample.get("target"))
        if not texts:
            raise ArgumentError(
                f"{self.samples[task]} has no thinking of the {self.thinker} model (mode={self.config.mode})."
            )
        chosen = sorted(texts)[:limit]
        return {number: texts[number] for number in chosen}, {number: targets[number] for number in chosen}

    def logged(self, texts: Mapping[str, Mapping[int, str]]) -> LoggedThinking:
        """Return the thinking for the analysis. `texts`: task -> number of the document -> thinking."""
        by_document = {(task, number): text for task, found in texts.items() for number, text in found.items()}
        return LoggedThinking(self.thinker, by_document, self.results.name)


def read(path: Path) -> FinishedRun:
    """Read the record of a run. `path`: its folder, or its results file. Raises `ArgumentError`."""
    results = _results_file(path)
    record = _json(results, results.read_bytes())
    recorded = record.get("config") if isinstance(record, dict) else None
    if not isinstance(recorded, dict) or recorded.get("model") != MODEL_ID:
        raise ArgumentError(f"{results} is not the results file of a run of {MODEL_ID}.")
    arguments, gen_kwargs = (_values(name, recorded.get(name)) for name in ("model_args", "gen_kwargs"))
    stem = f"{results.name.removesuffix(RESULTS)}_samples_"
    files = sorted(file for file in results.parent.glob(f"{stem}*.jsonl"))
    if not files:
        raise ArgumentError(f"The samples of {results} were not logged. Run it again with --log_samples.")
    return FinishedRun(
        results,
        arguments,
        parse(arguments),
        gen_kwargs,
        (recorded.get("resolved_cli_args") or {}).get("include_path"),
        {file.stem.removeprefix(stem): file for file in files},
    )


def _results_file(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.rglob(f"*{RESULTS}"))
    if not found:
        raise ArgumentError(f"--run {path}: there is no file *{RESULTS}, which lmms-eval writes with --output_path.")
    if len(found) > 1:
        names = ", ".join(str(file.relative_to(path)) for file in found)
        raise ArgumentError(f"--run {path}: there are {len(found)} runs. Give one of these files: {names}.")
    return found[0]


def _values(option: str, value: Any) -> dict[str, Any]:
    """Return arguments as a dict. lmms-eval writes them as the user gave them."""
    return dict(value) if isinstance(value, Mapping) else values_of(f"--{option}", value or "")


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for line in lines:
            yield _json(file, line)


def _json(file: Path, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ArgumentError(f"{file} cannot be read: it is not complete, or not JSON.") from None
