"""What all runs of an output folder have in common: everything that can change an answer, without secrets.

Pairs, benchmarks, tasks and tables may be added to a folder later. Arguments that change only the speed, the memory or
the treatment of errors may have other values when the command continues.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.engines.openai.options import PERFORMANCE_ARGUMENTS as OF_OPENAI
from lmms_eval_mai.engines.transformers.options import PERFORMANCE_ARGUMENTS as OF_TRANSFORMERS
from lmms_eval_mai.engines.vllm.configuration import PERFORMANCE_ARGUMENTS as OF_VLLM
from lmms_eval_mai.redaction import redacted, without_password
from lmms_eval_mai.reproduce.plan import Models
from lmms_eval_mai.run import fingerprint

VERSIONS = ("lmms-eval-mai", "lmms-eval")
OF_RUN = {"max_open_samples", "max_errors", "call_timeout", "engine_restarts"}
PERFORMANCE = OF_RUN | OF_OPENAI | OF_TRANSFORMERS | OF_VLLM


@dataclass(frozen=True)
class Common:
    """The arguments of a folder, as texts."""

    arguments: Mapping[str, str]
    """Name -> value. All runs have the same."""
    models: Mapping[str, str]
    """Name of a pair -> its two models. A later command may add pairs."""

    @classmethod
    def of(
        cls,
        models: Sequence[Models],
        model_args: Mapping[str, Any],
        gen_kwargs: Mapping[str, Any],
        limit: int | None,
        include_path: str | None,
    ) -> "Common":
        """Return what the runs of a command have in common."""
        found: dict[str, Any] = {f"version of {name}": fingerprint.version(name) for name in VERSIONS}
        changing = {name: value for name, value in model_args.items() if _changes_answers(name)}
        found |= {f"--model_args {name}": value for name, value in redacted(changing).items()}
        found |= {f"--gen_kwargs {name}": value for name, value in gen_kwargs.items()}
        found |= {"--limit": limit, "--include_path": include_path}
        named = {one.name: f"{one.config.small.model} and {one.config.large.model}" for one in models}
        return cls(
            {name: without_password(str(value)) for name, value in found.items() if value is not None},
            {name: without_password(text) for name, text in named.items()},
        )

    def differences(self, earlier: "Common") -> list[str]:
        """Return one text for each argument that an earlier command had with another value."""
        both = self.models.keys() & earlier.models.keys()
        return [
            *fingerprint.differences(earlier.arguments, self.arguments),
            *fingerprint.differences(
                {f"pair {name}": earlier.models[name] for name in both},
                {f"pair {name}": self.models[name] for name in both},
            ),
        ]


def _changes_answers(name: str) -> bool:
    return name.removeprefix("small_").removeprefix("large_") not in PERFORMANCE
