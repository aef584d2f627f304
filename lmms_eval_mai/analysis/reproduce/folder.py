"""The output folder of the command: a folder for each run, and `reproduce.json`, which has the finished runs. A run is
finished when its name is there, wherever the command was killed."""

import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmms_eval_mai import __version__
from lmms_eval_mai.analysis.reproduce.plan import Options, Run
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import RULES
from lmms_eval_mai.method.methods import steps_of
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.store import digest_of

PERFORMANCE = OpenAIOptions.without_effect() | TransformersOptions.without_effect() | PERFORMANCE_ARGUMENTS
"""Arguments of an engine that change only its speed, its memory or the treatment of errors."""


def common_digest(options: Options) -> str:
    """Return a hash of what all runs have in common."""
    versions = [__version__, importlib.metadata.version("lmms-eval"), prompts.digest(), RULES]
    return digest_of(versions, options.gen_kwargs, options.limit, options.include_path)


def digest(run: Run) -> str:
    """Return a hash of all else that can change an answer of a run, without secrets. What is in a pair's file is a part
    of it."""
    config = parse(run.models.arguments_of(run.kind.method))
    settings = config.settings
    engines = [
        (engine.engine, {name: value for name, value in redacted(engine.arguments).items() if name not in PERFORMANCE})
        for engine in config.engines()
    ]
    return digest_of(
        [steps_of(settings.method), config.thresholds if config.method.needs_threshold else None],
        [settings.options, settings.small, settings.large, engines],
    )


@dataclass
class OutputFolder:
    """The folder of `--output_path`."""

    path: Path
    common: str
    """The digest of what all runs have in common."""
    digests: Mapping[str, str]
    """The name of each run of the plan -> the digest of what it is made with."""
    finished: dict[str, str]
    """The name of each finished run -> the digest of what it was made with."""

    @classmethod
    def open(cls, path: Path, runs: Sequence[Run], options: Options) -> "OutputFolder":
        """Read the folder, and write nothing. Raises `ArgumentError` if a run was finished with other arguments."""
        common, digests = common_digest(options), {run.name: digest(run) for run in runs}
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return cls(path, common, digests, {})
        try:
            record = json.loads((path / "reproduce.json").read_bytes())
            known, finished = record["common"], dict(record["finished"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ArgumentError(
                f"--output_path {path} is not a folder of this command ({error}). Give a folder of its own."
            ) from None
        if known != common or any(finished.get(name, expected) != expected for name, expected in digests.items()):
            raise ArgumentError(
                f"--output_path {path} has runs with other arguments, or of other versions of lmms-eval-mai or "
                "lmms-eval. What is in the files of a pair, of a method and of thresholds counts too. Give another "
                "--output_path."
            )
        return cls(path, common, digests, finished)

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
        self.finished[run.name] = self.digests[run.name]
        self.write()

    def write(self) -> None:
        """Create the folder, and write the finished runs. Raises `ArgumentError`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self.path / "reproduce.part"
            part.write_text(json.dumps({"common": self.common, "finished": self.finished}, indent=1) + "\n")
            os.replace(part, self.path / "reproduce.json")
        except OSError as error:
            raise ArgumentError(f"--output_path {self.path} cannot be written ({error.strerror}).") from None
