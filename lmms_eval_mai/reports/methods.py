"""The way in which a run answers: `Method`, from the arguments in a results file and from the figures of the run."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.paper.prompts import Variant

DECODING = {"decoding": "greedy", "max_new_tokens": "", "gen_kwargs": "", "system_instruction": ""}
"""Arguments that change every call, with their defaults."""
TRANSFER = {
    "think": "R",
    "transfer_answer": "",
    "transfer": "full",
    "sparse_delta": "0.8",
    "sparse_layer": "12",
    "sparse_from": "large",
}
"""Arguments that change the thinking or the transfer, with their defaults."""
AGREEMENT = {"anls_threshold": "0.9", "infovqa_match": "strict", "chartqa_match": "exact"}
"""Arguments that change the agreement (`AgreementRules`), with their defaults."""
CHECKS = {"verify": "agreement", "min_confidence": "", "second_check": "on"}
"""Arguments that change the checks, with their defaults."""
DEFAULTS = DECODING | TRANSFER | AGREEMENT | CHECKS
MODES = ("alone", "transfer", "own", "cascade")
"""Those of `Method.mode`."""
NAMES = {"cascade": "MAI", "transfer": "Full RT", "own": "own thinking"}
"""Mode of a method with two steps -> its name for people."""
Arguments = Mapping[str, str]
"""The arguments of a run as its command had them."""


@dataclass(frozen=True, order=True)
class Method:
    """A way to answer. Two runs of one method on one benchmark should give the same result."""

    mode: str
    """`alone`: one model. `transfer`: Full RT. `cascade`: MAI. `own`: a cascade in which the large model thinks itself
    (`thinker=large`)."""
    model: str
    """The model that gives the final answer: the large one of a pair."""
    small: str = ""
    """The small model of a pair. Empty if the mode is `alone`."""
    variant: Variant | None = "S"
    """The prompt; in `transfer` and `cascade`, that of the small model's thinking. None: another task's own prompt."""
    two_stage: bool = False
    options: tuple[str, ...] = ()
    """Arguments that change the method and that are not at their default, such as `anls_threshold=0.5`."""

    @property
    def prompt(self) -> str:
        """The paper's name of the prompt: S, E, R, E(S2) or R(S2); in Full RT and MAI, that of the thinking."""
        return "own prompt" if self.variant is None else self.variant + ("(S2)" if self.two_stage else "")

    @property
    def choices(self) -> Choices:
        """The choices of a cascade."""
        given = {name: value for name in ("verify", "second_check") if (value := self._value(name))}
        return Choices(thinker="large" if self.mode == "own" else "small", **given)  # type: ignore[arg-type]

    @property
    def min_confidence(self) -> float | None:
        """The threshold of the first check. None: verify=agreement."""
        value = self._value("min_confidence")
        return float(value) if value else None

    def has_calls_of(self, cascade: "Method") -> bool:
        """Return whether this cascade, or own thinking, has the models, the prompts and the decoding of a cascade."""
        if self.mode == "own":
            return self.alone("large", self.variant, self.two_stage) == cascade.alone(
                "large", cascade.variant, cascade.two_stage
            )
        return (self.full_rt(), self.two_stage) == (cascade.full_rt(), cascade.two_stage)

    def alone(self, side: Side, variant: Variant | None, two_stage: bool = False) -> "Method":
        """Return the method of one model of this pair."""
        model = self.small if side == "small" else self.model
        return Method("alone", model, "", variant, two_stage, self._options(DECODING))

    def short(self, side: Side) -> "Method":
        """Return the method of the short answers of this cascade: S, or the own prompt of another task."""
        return self.alone(side, "S" if self.variant else None)

    def full_rt(self) -> "Method":
        """Return Full RT of the same pair with the same thinking, which has one stage (Table 8)."""
        return replace(self, mode="transfer", two_stage=False, options=self._options(DECODING | TRANSFER))

    def _value(self, name: str) -> str:
        return next((option.partition("=")[2] for option in self.options if option.startswith(f"{name}=")), "")

    def _options(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(option for option in self.options if option.partition("=")[0] in names)


def arguments_of(results: dict[str, Any]) -> Arguments:
    """Return the model arguments that a results file names, `gen_kwargs` and `system_instruction`."""
    config = results.get("config") or {}
    given = config.get("model_args") or ""
    # Arguments that are a list or a mapping are not needed here, so a comma always ends a value.
    text = ",".join(f"{name}={value}" for name, value in given.items()) if isinstance(given, dict) else str(given)
    found = dict(re.findall(r"(?:^|,)\s*(\w+)=([^,]*)", text))
    gen_kwargs = config.get("gen_kwargs") or ""
    if not isinstance(gen_kwargs, str):
        gen_kwargs = " ".join(f"{name}={value}" for name, value in sorted(gen_kwargs.items()))
    return found | {"gen_kwargs": gen_kwargs, "system_instruction": results.get("system_instruction") or ""}


def rules_of(arguments: Arguments) -> AgreementRules:
    """Return the rules of agreement that the arguments name. Raises ValueError."""
    found: dict[str, Any] = {name: arguments[name] for name in AGREEMENT if name in arguments}
    if "anls_threshold" in found:
        found["anls_threshold"] = float(found["anls_threshold"])
    return AgreementRules(**found)


def options(arguments: Arguments, names: Collection[str] = tuple(DEFAULTS)) -> tuple[str, ...]:
    """Return the arguments that change the method and are not at their default."""
    given = sorted((name, arguments[name]) for name in names if name in arguments)
    return tuple(f"{name}={value}" for name, value in given if value != DEFAULTS[name])


def method_of_other(model: str, arguments: Arguments, variant: Variant | None, two_stage: bool) -> Method:
    """Return the method of a run of another model class of lmms-eval. `model`: the name of this class."""
    names = ("pretrained", "model_version", "model", "model_id", "path")
    named = next((arguments[name] for name in names if arguments.get(name)), model)
    return Method("alone", named, "", variant, two_stage, options(arguments))


def method(
    arguments: Arguments, figures: dict[str, Any], variant: Variant | None, two_stage: bool, benchmark: str | None
) -> Method:
    """Return the method of a run of `mai_cascade`. `variant` and `two_stage`: the prompt of the task. `benchmark`: that
    of our tasks. Raises LookupError if a figure is missing."""
    mode, models = figures["mode"], {side: identity(of["model"]) for side, of in figures["engines"].items()}
    if mode in SIDES:
        return Method("alone", models[mode], "", variant, two_stage, options(arguments, DECODING))
    # The command may lack these arguments: they are in a pair's file, or in a file of thresholds.
    check = figures.get("first_check") or {"verify": "agreement"}
    given = {**arguments, "verify": check["verify"], "second_check": figures.get("second_check", "on")}
    given["min_confidence"] = ""
    if "min_confidence" in check:
        given["min_confidence"] = repr((check.get("by_benchmark") or {}).get(benchmark, check["min_confidence"]))
    if given.get("transfer_answer") == prompts.transfer_answer(benchmark or ""):
        del given["transfer_answer"]
    if variant is not None:  # it names the thinking prompt
        think = given.pop("think", "R")
        variant = variant if variant != "S" else "E" if think == "E" else "R"
    mode = "own" if figures.get("thinker") == "large" else mode
    of_mode = {"transfer": DECODING | TRANSFER, "own": DECODING | AGREEMENT | CHECKS | {"think": "R"}}
    return Method(
        mode, models["large"], models.get("small", ""), variant, two_stage, options(given, of_mode.get(mode, DEFAULTS))
    )


def identity(model: str) -> str:
    """Return the name of a model as runs have it. The checkpoints of a pair's own folder have the same name on every
    machine."""
    return re.sub(r"^(\./|.*/lmms_eval_mai/pairs/)", "", model)
