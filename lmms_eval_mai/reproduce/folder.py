"""The output folder of the command: one folder for each run, and the arguments that all of them have in common.

A run writes into a folder of its own below `unfinished`. When all its files are there, the folder is moved to its place
in one step. So a folder in its place is a finished run, wherever the command was killed.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS as OF_TRANSFORMERS
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS as OF_VLLM
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import redacted, without_password
from lmms_eval_mai.reproduce.plan import Models, Options, Run
from lmms_eval_mai.run.config import NO_EFFECT_ON_ANSWERS
from lmms_eval_mai.run.totals import FIGURES, version

VERSIONS = ("lmms-eval-mai", "lmms-eval")
OF_ENDPOINTS = {"api_key_env", "retry_for", "request_timeout", "concurrency"}
PERFORMANCE = NO_EFFECT_ON_ANSWERS | OF_ENDPOINTS | OF_TRANSFORMERS | OF_VLLM
"""Arguments that change only the speed, the memory or the treatment of errors. They may change when the command
continues."""
PAIR = "pair "
"""Begins the name under which the models of a pair are kept. Pairs may be added later."""


def common_arguments(
    models: Sequence[Models], model_args: Mapping[str, Any], gen_kwargs: Mapping[str, Any], options: Options
) -> dict[str, str]:
    """Return what all runs of a command have in common, by name: everything that can change an answer, without
    secrets."""
    changing = {
        name: value
        for name, value in model_args.items()
        if name.removeprefix("small_").removeprefix("large_") not in PERFORMANCE
    }
    found: dict[str, Any] = {f"version of {name}": version(name) for name in VERSIONS}
    found |= {f"--model_args {name}": value for name, value in redacted(changing).items()}
    found |= {f"--gen_kwargs {name}": value for name, value in gen_kwargs.items()}
    found |= {"--limit": options.limit, "--include_path": options.include_path}
    found |= {f"{PAIR}{pair.name}": f"{pair.config.small.model} and {pair.config.large.model}" for pair in models}
    return {name: without_password(str(value)) for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class OutputFolder:
    """The folder of `--output_path`."""

    path: Path

    @property
    def calls(self) -> Path:
        """Return the name of the call store of all runs, without its suffix."""
        return self.path / "calls"

    def place(self, run: Run) -> Path:
        """Return the folder of a finished run: the `--output_path` of the equivalent lmms-eval command."""
        return self.path / run.name

    def is_finished(self, run: Run) -> bool:
        return self.place(run).is_dir()

    def count_calls(self, run: Run) -> tuple[int, int]:
        """Return the number of calls of a finished run, and how many of them other runs made."""
        (file,) = self.place(run).rglob(f"*{FIGURES}")
        task = json.loads(file.read_text(encoding="utf-8"))["tasks"][run.task]
        usage = [task[side] for side in SIDES if side in task]
        return sum(side["calls"] for side in usage), sum(side.get("shared_calls", 0) for side in usage)

    def check(self, common: Mapping[str, str]) -> None:
        """Refuse a folder whose runs have other arguments. Raises `ArgumentError`."""
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentError(f"--output_path {self.path} is not a folder.")
        if not self._arguments.is_file():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ArgumentError(
                    f"--output_path {self.path} has files of another command. Give a folder of its own to "
                    "`lmms-eval-mai reproduce`."
                )
            return
        earlier = self._earlier()
        other_pairs = {name for name in earlier.keys() ^ common.keys() if name.startswith(PAIR)}
        before, now = ({name: one[name] for name in one.keys() - other_pairs} for one in (earlier, common))
        differ = [
            f"{name} was {before.get(name, 'not given')} and is {now.get(name, 'not given')}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        if differ:
            raise ArgumentError(
                f"The runs in --output_path {self.path} have other arguments: {'; '.join(differ)}. Give another "
                "--output_path, or the earlier arguments."
            )

    def create(self, common: Mapping[str, str]) -> None:
        """Create the folder and write the arguments. The pairs of earlier commands stay. Raises `ArgumentError` if it
        cannot be written."""
        earlier = self._earlier() if self._arguments.is_file() else {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self._arguments.with_suffix(".part")
            part.write_text(json.dumps({"arguments": {**earlier, **common}}, indent=1) + "\n", encoding="utf-8")
            os.replace(part, self._arguments)
        except OSError as error:
            raise ArgumentError(f"--output_path {self.path} cannot be written ({error.strerror}).") from None

    def begin(self, run: Run) -> Path:
        """Return the empty folder into which a run writes."""
        folder = self._unfinished(run)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir(parents=True)
        return folder

    def finish(self, run: Run) -> None:
        """Move the folder of a run to its place."""
        place = self.place(run)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._unfinished(run), place)

    def clean_up(self) -> None:
        """Remove what only unfinished runs need. The store stays, for runs that are added later."""
        shutil.rmtree(self.path / "unfinished", ignore_errors=True)

    @property
    def _arguments(self) -> Path:
        return self.path / "reproduce.json"

    def _unfinished(self, run: Run) -> Path:
        return self.path / "unfinished" / run.name

    def _earlier(self) -> dict[str, str]:
        try:
            return dict(json.loads(self._arguments.read_text(encoding="utf-8"))["arguments"])
        except (OSError, ValueError, TypeError, KeyError):
            raise ArgumentError(f"{self._arguments} cannot be read. Give another --output_path.") from None
