"""Which method an lmms-eval command ran: from its model arguments in the results file, and from the figures of the run.

The figures name mode and models. If they are missing, the arguments do.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.records import AGREEMENT, DECODING, TRANSFER, Method
from lmms_eval_mai.run import presets

DEFAULTS = {
    "think": "R",
    "transfer_answer": "cut",
    "transfer": "full",
    "sparse_delta": "0.8",
    "sparse_layer": "12",
    "sparse_from": "large",
    "sparse_order": "original",
    "sparse_boundary": "least",
    "decoding": "greedy",
    "anls_threshold": "0.9",
    "chartqa_match": "exact",
}


@dataclass(frozen=True, slots=True)
class Given:
    """The model and its arguments as the command had them."""

    model: str
    """lmms-eval's name of the model class."""
    name: str
    """The evaluated model, for people."""
    arguments: dict[str, str]

    def rules(self) -> dict[str, Any]:
        """Return the arguments of `AgreementRules`."""
        found: dict[str, Any] = {name: self.arguments[name] for name in AGREEMENT if name in self.arguments}
        try:
            return {name: float(value) if name == "anls_threshold" else value for name, value in found.items()}
        except ValueError:
            return {}

    def options(self) -> tuple[str, ...]:
        """Return the arguments that change the method and are not at their default."""
        names = sorted(name for name in (*AGREEMENT, *TRANSFER, *DECODING) if name in self.arguments)
        return tuple(
            f"{name}={self.arguments[name]}" for name in names if self.arguments[name] != DEFAULTS.get(name, "")
        )


def read(results: dict[str, Any]) -> Given:
    """Return the model and the arguments that a results file names."""
    config = results.get("config") or {}
    text = config.get("model_args") or ""
    # Arguments that are a list or a mapping are not needed here, so a comma always ends a value.
    arguments = dict(re.findall(r"(?:^|,)\s*(\w+)=([^,]*)", text if isinstance(text, str) else ""))
    gen_kwargs = config.get("gen_kwargs") or ""
    if not isinstance(gen_kwargs, str):
        gen_kwargs = " ".join(f"{name}={value}" for name, value in sorted(gen_kwargs.items()))
    arguments["gen_kwargs"] = gen_kwargs
    model = str(config.get("model") or results.get("model_source") or "model")
    named = [arguments.get(name) for name in ("pretrained", "model_version", "model", "model_id", "path")]
    return Given(model, next((name for name in named if name), model), arguments)


def method(given: Given, figures: dict[str, Any], variant: Variant | None, two_stage: bool) -> Method:
    """Return the method of a run of `mai_cascade`. `variant` and `two_stage`: the prompt of the task. Raises ValueError
    if the mode is unknown."""
    mode = figures.get("mode") or given.arguments.get("mode") or "cascade"
    if not isinstance(mode, str) or mode not in EXITS:
        raise ValueError(f"unknown mode {mode}")
    engines = figures.get("engines") or {}
    small, large = (
        identity(str((engines.get(side) or {}).get("model") or _argument(given, side))) for side in ("small", "large")
    )
    if mode in ("small", "large"):
        options = tuple(option for option in given.options() if option.partition("=")[0] in DECODING)
        return Method("alone", small if mode == "small" else large, "", variant, two_stage, options)
    if variant == "S":
        think: Variant = "E" if given.arguments.get("think") == "E" else "R"
        variant = think
    options = given.options()
    if variant is not None:  # it names the thinking prompt
        options = tuple(option for option in options if not option.startswith("think="))
    if mode == "transfer":
        options = tuple(option for option in options if option.partition("=")[0] not in AGREEMENT)
    return Method(mode, large, small, variant, two_stage, options)


def identity(model: str) -> str:
    """Return the name of a model as runs have it. The checkpoints of a pair's own folder have the same name on every
    machine."""
    return re.sub(r"^(\./|.*/lmms_eval_mai/pairs/)", "", model)


def _argument(given: Given, side: str) -> str:
    """Return a model from the arguments. `pair=NAME` names both."""
    if side in given.arguments:
        return given.arguments[side]
    pair = given.arguments.get("pair", presets.DEFAULT)
    if pair in presets.names():
        return presets.models(pair)[("small", "large").index(side)]
    return f"{Path(pair).stem} {side}"


assert set(AgreementRules.__dataclass_fields__) == set(AGREEMENT)
