"""The output folder of the command: a folder for each run, and `reproduce.json`, which has the arguments that all runs
have in common and the names of the finished runs. A run is finished when its name is there, wherever the command was
killed."""

import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS as OF_TRANSFORMERS
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS as OF_VLLM
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import steps_of
from lmms_eval_mai.redaction import redacted, without_password
from lmms_eval_mai.reproduce.plan import Models, Options, Run
from lmms_eval_mai.run.config import Config

PERFORMANCE = Config.without_effect() | OpenAIOptions.without_effect() | OF_TRANSFORMERS | OF_VLLM
"""Arguments that change only the speed, the memory or the treatment of errors. They may change when the command
continues."""
PAIR, METHOD = "pair ", "method "
"""Begin the names under which the models of a pair, and the steps of a user's method, are kept. Both may be added
later."""


def common_arguments(
    models: Sequence[Models], model_args: Mapping[str, Any], gen_kwargs: Mapping[str, Any], options: Options
) -> dict[str, str]:
    """Return what all runs of a command have in common, by name: everything that can change an answer, without
    secrets."""
    found: dict[str, Any] = {
        f"version of {name}": importlib.metadata.version(name) for name in ("lmms-eval-mai", "lmms-eval")
    }
    for name, value in redacted(model_args).items():
        if name.removeprefix("small_").removeprefix("large_") not in PERFORMANCE:
            found[f"--model_args {name}"] = value
    found |= {f"--gen_kwargs {name}": value for name, value in gen_kwargs.items()}
    found |= {"--limit": options.limit, "--include_path": options.include_path}
    found |= {f"{PAIR}{pair.name}": f"{pair.config.small.model} and {pair.config.large.model}" for pair in models}
    found |= {f"{METHOD}{method.name}": steps_of(method) for pair in models for method in pair.own}
    return {name: without_password(str(value)) for name, value in found.items() if value is not None}


@dataclass
class OutputFolder:
    """The folder of `--output_path`."""

    path: Path
    arguments: dict[str, str]
    """What all runs have in common."""
    finished: list[str]
    """The names of the finished runs."""

    @classmethod
    def open(cls, path: Path, common: Mapping[str, str]) -> "OutputFolder":
        """Read the folder, and write nothing. Raises `ArgumentError` if its runs have other arguments."""
        file = path / "reproduce.json"
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return cls(path, dict(common), [])
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            earlier, finished = dict(record["arguments"]), list(record["finished"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ArgumentError(
                f"--output_path {path} is not a folder of this command ({error!r}). Give a folder of its own."
            ) from None
        apart = {name for name in earlier.keys() ^ common.keys() if name.startswith((PAIR, METHOD))}
        differ = [
            f"{name} was {earlier.get(name, 'not given')} and is {common.get(name, 'not given')}"
            for name in sorted({*earlier, *common} - apart)
            if earlier.get(name) != common.get(name)
        ]
        if differ:
            raise ArgumentError(
                f"The runs in --output_path {path} have other arguments: {'; '.join(differ)}. Give another "
                "--output_path, or the earlier arguments."
            )
        return cls(path, {**earlier, **common}, finished)

    def place(self, run: Run) -> Path:
        """Return the folder of a run: the `--output_path` of the equivalent lmms-eval command."""
        return self.path / run.name

    def is_finished(self, run: Run) -> bool:
        return run.name in self.finished

    def begin(self, run: Run) -> Path:
        """Return the empty folder of a run."""
        shutil.rmtree(self.place(run), ignore_errors=True)  # of a process that was killed
        self.place(run).mkdir(parents=True)
        return self.place(run)

    def finish(self, run: Run) -> None:
        self.finished.append(run.name)
        self.write()

    def write(self) -> None:
        """Create the folder, and write the arguments and the finished runs. Raises `ArgumentError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self.path / "reproduce.part"
            part.write_text(json.dumps({"arguments": self.arguments, "finished": self.finished}, indent=1) + "\n")
            os.replace(part, self.path / "reproduce.json")
        except OSError as error:
            raise ArgumentError(f"--output_path {self.path} cannot be written ({error.strerror}).") from None
