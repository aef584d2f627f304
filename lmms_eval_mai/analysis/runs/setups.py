"""How the runs of one row of a report answer: `Setup`, from the first trace of a run."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lmms_eval_mai.contract import PROMPTS, Side, Variant
from lmms_eval_mai.method import methods, prompts
from lmms_eval_mai.method.agreement import AGREEMENT_OPTIONS, RULES
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import FULL_RT, LARGE, MAI, Method, prompt_of

Options = tuple[tuple[str, Any], ...]
"""Names and values, sorted by name."""
MethodFamily = Literal["alone", "full_rt", "solo", "cascade"]
"""alone: one call of one model. full_rt: no condition. solo: one model with a condition. cascade: both models."""
FAMILIES: tuple[MethodFamily, ...] = ("alone", "full_rt", "solo", "cascade")
TRANSFER_OPTIONS = ("transfer_answer", "transfer", "sparse_delta", "sparse_layer")
"""Options that change the transfer."""
NATIVE_OPTIONS = ("native_gen_kwargs", "max_thinking_tokens")
"""Options of the calls in which a model thinks by itself."""
NAMES = {
    MAI: "MAI",
    FULL_RT: "Full RT",
    methods.MAI_CONFIDENCE: "MAI by confidence",
    methods.MAI_CONFIDENCE_DIRECT: "MAI by confidence, direct",
    methods.OWN_THINKING: "own thinking",
}
"""Method -> its name for people."""


@dataclass(frozen=True)
class Setup:
    """A method, its models, its prompt and its options. Two runs with one setup on one benchmark should give the same
    result."""

    method: Method
    """`LARGE` stands for any model alone."""
    model: str
    """The model that gives the final answer: the large one of a pair."""
    small: str = ""
    """The small model of a pair. Empty: it is not asked."""
    variant: Variant | None = "S"
    """The prompt of one model alone; else that of the thinking. None: the prompt of another task."""
    two_stage: bool = False
    options: Options = ()
    """Options that can change an answer and are not at their default, such as `("anls_threshold", 0.5)`, and `rules` of
    a run that read and compared its answers by other rules than this version."""

    @property
    def family(self) -> MethodFamily:
        if self.method == LARGE:
            return "alone"
        if not any(stop.agree or stop.sure for stop in self.method.stops):
            return "full_rt"
        return "solo" if len(self.method.sides) == 1 else "cascade"

    @property
    def prompt(self) -> str:
        """The paper's name of the prompt: S, E, R, E(S2) or R(S2), or N for native; in Full RT and MAI, that of the
        thinking."""
        return "own prompt" if self.variant is None else self.variant[0].upper() + ("(S2)" if self.two_stage else "")

    @property
    def think(self) -> Variant:
        """The thinking prompt of a task that has neither E nor R."""
        think: Variant = dict(self.options).get("think", "R")
        return think

    @property
    def decoding(self) -> Options:
        """The options that change every call."""
        return without((*TRANSFER_OPTIONS, *AGREEMENT_OPTIONS, "min_confidence", "think", "rules"), self.options)

    @property
    def non_native_decoding(self) -> Options:
        """The options that change the calls in which the model does not think by itself."""
        return without(NATIVE_OPTIONS, self.decoding)

    @property
    def transfer(self) -> Options:
        return tuple((name, value) for name, value in self.options if name in TRANSFER_OPTIONS)

    @property
    def replay_setup(self) -> "Setup":
        """The setup of the methods that are replayed with the calls of this run. If it is a run of one model alone,
        they think with R, or natively if it does."""
        think: Variant = "native" if self.variant == "native" else "R"
        return replace(self, variant=self.variant and think, two_stage=False) if self.family == "alone" else self

    def model_of(self, side: Side) -> str:
        """Return the model of a side. A model alone is that of its only calls, whatever its side."""
        return self.small if side == "small" and self.small else self.model

    def alone(self, side: Side, variant: Variant | None, two_stage: bool = False) -> "Setup":
        """Return the setup of one model of this pair."""
        options = self.decoding if variant == "native" else self.non_native_decoding
        return Setup(LARGE, self.model_of(side), "", variant, two_stage, options)

    def short_answers(self, side: Side) -> "Setup":
        """Return the setup of the short answers of this method: S, or the prompt of another task."""
        return self.alone(side, "S" if self.variant else None)

    def full_rt(self) -> "Setup":
        """Return Full RT of the same pair with the same thinking, which has one stage (Table 8)."""
        return replace(self.with_method(FULL_RT), small=self.small, two_stage=False)

    def with_method(self, method: Method, threshold: float | None = None) -> "Setup":
        """Return the setup of another method with the same models and options. `threshold`: that of its stops."""
        if len(method.asks) == 1:
            row = PROMPTS[prompt_of(method.asks[0], self.variant, self.think)]
            return self.alone(method.sides[0], row.variant, self.two_stage and row.two_stages)
        unused: tuple[str, ...] = () if any(stop.agree for stop in method.stops) else AGREEMENT_OPTIONS
        unused += () if any(ask.of for ask in method.asks) else TRANSFER_OPTIONS
        options = dict(without((*unused, "min_confidence"), self.options))
        if method.needs_threshold and threshold is not None:
            options["min_confidence"] = threshold
        *small, model = map(self.model_of, method.sides)
        return replace(self, method=method, model=model, small="".join(small), options=as_options(options))


def without(names: Collection[str], options: Options) -> Options:
    return tuple((name, value) for name, value in options if name not in names)


def as_options(options: Mapping[str, Any]) -> Options:
    """Return options as pairs that can be hashed: a list or a mapping as its text."""
    values = {name: str(value) if isinstance(value, list | dict) else value for name, value in options.items()}
    return tuple(sorted(values.items()))


def setup_of(trace: Mapping[str, Any], variant: Variant | None, two_stage: bool, benchmark: str) -> Setup:
    """Return the setup of a run from the first trace that has a threshold, or else from the first one. `variant` and
    `two_stage`: the prompt of the task. Raises what a broken trace raises."""
    name, options = trace["method"], dict(trace["options"])
    method = read_steps(name, trace["steps"], "The method of the trace")
    *small, model = (identity(trace.get(side, "")) for side in method.sides)
    if len(method.asks) == 1:
        return Setup(method, model, "", variant, two_stage, as_options(options)).with_method(method)
    if options.get("transfer_answer") == prompts.TRANSFER_ANSWER[benchmark_of(benchmark).transfer_prompt]:
        del options["transfer_answer"]
    if (threshold := trace.get("min_confidence")) is not None:
        options["min_confidence"] = float(threshold)
    if (rules := trace.get("rules", 1)) != RULES:
        options["rules"] = rules
    if variant is not None:  # it names the thinking prompt
        think = options.pop("think", "R")
        variant = variant if variant != "S" else think
    return Setup(method, model, "".join(small), variant, two_stage, as_options(options))


def setup_of_other(results: Mapping[str, Any], variant: Variant | None, two_stage: bool) -> Setup:
    """Return the setup of a run of another model class of lmms-eval, from its results file."""
    config = results.get("config") or {}
    text = config.get("model_args") or ""
    # Arguments that are a list or a mapping are not needed here, so a comma always ends a value.
    arguments = dict(text) if isinstance(text, Mapping) else dict(re.findall(r"(?:^|,)\s*(\w+)=([^,]*)", text))
    gen_kwargs = config.get("gen_kwargs") or ""
    if not isinstance(gen_kwargs, str):
        gen_kwargs = " ".join(f"{name}={value}" for name, value in sorted(gen_kwargs.items()))
    names = ("pretrained", "model_version", "model", "model_id", "path")
    named = next((arguments[name] for name in names if arguments.get(name)), config.get("model") or "")
    options = {"gen_kwargs": gen_kwargs} if gen_kwargs else {}
    return Setup(LARGE, str(named), "", variant, two_stage, as_options(options))


def identity(model: str) -> str:
    """Return the name of a model as runs have it. The checkpoints of a pair's own folder have the same name on every
    machine."""
    return re.sub(r"^(\./|.*/lmms_eval_mai/pairs/)", "", model)
