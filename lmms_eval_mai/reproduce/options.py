"""The options of lmms-eval that all runs have, and the lmms-eval command that is equivalent to a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.plugin import MODEL_ID
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.reproduce.plan import Run


@dataclass(frozen=True)
class Options:
    """The options of lmms-eval that all runs have, as the user gave them."""

    gen_kwargs: str = ""
    limit: int | None = None
    include_path: str | None = None

    def command(self, run: Run, output: Path, shown: bool = False) -> list[str]:
        """Return the arguments of the equivalent lmms-eval command. `shown`: without secrets, for people."""
        model_args = redacted(run.arguments()) if shown else run.arguments()
        arguments = ["--model", MODEL_ID, "--model_args", text_of(model_args), "--tasks", run.task]
        for name in ("gen_kwargs", "limit", "include_path"):
            if value := getattr(self, name):
                arguments += [f"--{name}", str(value)]
        return [*arguments, "--output_path", str(output), "--log_samples"]


def text_of(arguments: Mapping[str, Any]) -> str:
    """Return model arguments as the text of `--model_args`."""
    return ",".join(f"{name}={value}" for name, value in arguments.items())
