"""The arguments of `--model mai_cascade`, read and checked before anything starts.

lmms-eval parses `--model_args` into bool, int, float and str (lmms_eval/utils.py): nested values arrive as strings and
-1 arrives as -1.0. pydantic converts the arguments of `Config`, and each engine converts its own. An argument that
`Config` does not have belongs to an engine: `small_<argument>`, `large_<argument>`, or `<argument>` for both.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from lmms_eval_mai import __version__
from lmms_eval_mai.contract import PROMPTS, SIDES, EngineConfig, Side
from lmms_eval_mai.engines.arguments import (
    NO_EFFECT,
    Arguments,
    Count,
    Number,
    Share,
    Whole,
    did_you_mean,
    parse_literal,
    read,
)
from lmms_eval_mai.engines.build import argument_names
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method import files
from lmms_eval_mai.method.agreement import AGREEMENT_OPTIONS, AgreementRules, ChartqaMatch, InfovqaMatch
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE, MAI, Method, Thresholds
from lmms_eval_mai.method.prompts import TransferAnswer
from lmms_eval_mai.method.sample import Settings
from lmms_eval_mai.redaction import without_password
from lmms_eval_mai.run import calibration, pairs
from lmms_eval_mai.run.calibration import Calibrated, Calibration


def _layer(value: Any) -> int | float:
    """Return the number of a layer as an int, or a share of all layers as a float. 1.0 could be either."""
    if not isinstance(value, bool) and isinstance(value, int | float):
        if isinstance(value, float) and 0 < value < 1:
            return value
        if float(value).is_integer() and (value > 1 or (value == 1 and isinstance(value, int))):
            return int(value)
    raise ValueError("expected the number of a layer (1, 2, ...) or a share of the layers between 0 and 1, as 0.33")


def _max_errors(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError("expected a number of samples, or a share below 1")
    return value


def _store(value: Any) -> str | None:
    """Return None for the default folder, `off`, or the given folder. lmms-eval reads true and false as bool."""
    if value is True or value == "on":
        return None
    return "off" if value is False else str(parse_literal(value) or "off")


class Config(Arguments):
    """All model arguments, except those of the engines themselves."""

    small: EngineConfig
    """The small model and its engine."""
    large: EngineConfig
    """The large model and its engine."""
    method: Annotated[Method, BeforeValidator(files.load)] = MAI
    """A name or a YAML file (docs/methods.md): which calls are made, and where a sample is done. `mai`: the paper's.
    `full_rt`: reasoning transfer on every sample. `small`, `large`: one model alone with the task's own prompt.
    `large_r`: the large one with the thinking prompt, on any task. Not in the paper (docs/confidence.md):
    `mai_confidence`, `mai_confidence_direct`, `own_thinking`."""
    think: Literal["R", "E", "native"] = "R"
    """The thinking prompt in `_s` tasks and in other lmms-eval tasks: `R` or `E`. `_e` and `_r` tasks use
    their own prompt. `native`: the prompt of the short answer, and the model's own thinking is switched on; then
    `method=small` and `large` think in these tasks too. docs/first-run.md names models that can think by themselves.
    All other calls switch it off."""
    native_gen_kwargs: Annotated[Mapping[str, Any] | None, BeforeValidator(parse_literal)] = None
    """Decoding arguments of the calls in which a model thinks by itself, in place of those of the task and of
    `--gen_kwargs`: `{"temperature": 1.0, "top_p": 0.95}`. Short answers should stay greedy."""
    max_thinking_tokens: Count | None = None
    """The most tokens of a model's own thinking; then it must answer. It needs vLLM with the argument
    `reasoning_parser`, or a server that has one. Other engines end the output at this limit, without an answer."""
    stop_repeats: StrictBool = False
    """Whether a thinking that repeats itself ends: when its last tokens are one pattern of 32 to 96 tokens, 6 times. A
    shorter pattern counts several times. Only its first pattern is transferred. Its `finish_reason` is `repetition`. It
    needs vLLM, which looks at each token in its scheduler, transformers, or a server of vLLM; the scripted engine
    replays its records. Not in the paper."""
    min_confidence: Share | str | None = None
    """The threshold of a method that asks how sure a model is, such as `mai_confidence`: a probability above 0 and at
    most 1, or a file of `lmms-eval-mai calibrate`, which chooses it by documents of your own. Default: 0.9, which is
    not calibrated for any pair."""
    calibration: Calibration | None = None
    """The file of `min_confidence`."""
    # The docstrings of these three are in `AgreementRules`.
    anls_threshold: Share = AgreementRules.anls_threshold
    infovqa_match: InfovqaMatch = AgreementRules.infovqa_match
    chartqa_match: ChartqaMatch = AgreementRules.chartqa_match
    max_open_samples: Annotated[Count, NO_EFFECT] = 256
    """Number of samples processed at the same time. Their images are in memory."""
    group_images: Annotated[StrictBool, NO_EFFECT] = True
    """Whether questions about one image run next to each other, so that an engine reads the image once. Results keep
    their order."""
    max_new_tokens: Count | None = None
    """Limits the output tokens of every call. Default: the limit of the task or of `--gen_kwargs`, else 4,096. In other
    lmms-eval tasks, a limit below 4,096 is for the short answers only."""
    on_overflow: Literal["truncate", "error"] = "truncate"
    """What to do if a prompt with thinking (Stage 2 or transfer) does not fit the model's context: `truncate` keeps the
    end of the thinking; `error` fails the sample. On an endpoint the sample always fails."""
    transfer_answer: TransferAnswer | None = None
    """The thinking that is transferred to the large model: `keep` is the small model's whole response; `cut` leaves out
    its last `[[answer]]`. Default: `keep` for POPE and ChartQA (Prompt 1 of Reason Transfer), `cut` for all other tasks
    (Prompt 2)."""
    transfer: Literal["full", "sparse"] = "full"
    """What the large model gets of the small model's thinking: `full`, all of it (Eq. 9), or `sparse`, only its key
    tokens (Eq. 12 and 13), which the large model's attention selects, in an additional prefill for each transfer.
    `sparse` needs `large_engine=transformers`. The arguments `sparse_...` need `sparse`."""
    sparse_delta: Share = 0.8
    """The kept tokens carry this share of the attention to all tokens of the thinking. 1 keeps the whole thinking."""
    sparse_layer: Annotated[int | float, BeforeValidator(_layer)] = 12
    """The layer whose attention is used: its number, from 1, or a share of the model's layers, such as 0.33. The
    default 12 is for 36 layers."""
    store: Annotated[str | None, BeforeValidator(_store), NO_EFFECT] = None
    """Folder of the call store (default: in the user's cache), with which the same command resumes a run. `off`: no
    store."""
    keep_store: Annotated[StrictBool, NO_EFFECT] = False
    """Whether the store's file stays when the results of the run are saved."""
    log_prompts: Annotated[StrictBool, NO_EFFECT] = False
    """Whether the trace of a sample holds the prompt of each call (`--log_samples`)."""
    max_errors: Annotated[Number, AfterValidator(_max_errors), NO_EFFECT] = 0
    """Number of samples that may fail. Below 1: a share of all samples of the run (0.01 is 1%). Failed samples are
    counted and left out of the scores."""
    call_timeout: Annotated[Annotated[Number, Field(ge=1e-3)] | None, NO_EFFECT] = None
    """Seconds that one call may take. Default: no limit."""
    engine_restarts: Annotated[Whole, NO_EFFECT] = 2
    """Number of times that each engine may be restarted after a crash. A crash that is traced to one call is not
    counted."""
    model_name: Annotated[str | None, BeforeValidator(str), NO_EFFECT] = None
    """Name of the run in lmms-eval's files, and of the subfolder of `--output_path` to which lmms-eval writes. Default:
    the models and the method, such as `mai_cascade-Qwen3-VL-2B-Instruct+Qwen3-VL-8B-Instruct-mai`."""

    @property
    def rules(self) -> AgreementRules:
        return AgreementRules(self.anls_threshold, self.infovqa_match, self.chartqa_match)

    def engines(self) -> tuple[EngineConfig, ...]:
        """Return the engines that the method uses, with what it needs of them."""
        return tuple(
            dataclasses.replace(
                getattr(self, side),
                native=side in self.native,
                stop_repeats=self.stop_repeats,  # other methods of these engines may think with both
                attention=side == "large" and self.transfer == "sparse",
            )
            for side in self.method.sides
        )

    @property
    def native(self) -> frozenset[Side]:
        """The models that think by themselves, unless the task has a thinking prompt of its own."""
        by_argument = ("think", "task") if self.think == "native" else ()
        return frozenset(ask.side for ask in self.method.asks if ask.prompt in ("native", *by_argument))

    @property
    def may_think(self) -> frozenset[Side]:
        """The models that think, or that get the prompt of a task, which may ask for it."""
        return frozenset(ask.side for ask in self.method.asks if ask.prompt == "task" or PROMPTS[ask.prompt].thinks)

    @property
    def calibrated(self) -> Calibrated | None:
        """Return what the file of `min_confidence` has of the method, if there is one."""
        return self.calibration.methods.get(self.method.name) if self.calibration is not None else None

    @property
    def thresholds(self) -> Thresholds:
        if self.calibrated is not None:
            return self.calibrated.thresholds
        return Thresholds(self.min_confidence if isinstance(self.min_confidence, float) else DEFAULT_CONFIDENCE)

    @property
    def settings(self) -> Settings:
        """Return what a trace says about the run."""
        unused = {name for names, is_usable, _ in USABLE_IF if not is_usable(self) for name in names}
        # A trace has its threshold, and the thinking prompt of a task has priority over `think`.
        names = RUN_ARGUMENTS - Config.without_effect() - unused - {"method", "min_confidence"}
        given = {name: getattr(self, name) for name in sorted(names)}
        options = {name: value for name, value in given.items() if value != DEFAULTS[name]}
        models: dict[str, str] = {engine.side: without_password(engine.model) for engine in self.engines()}
        return Settings(self.method, options, models.get("small", ""), models.get("large", ""), version=__version__)

    def other(self, engine: EngineConfig) -> EngineConfig | None:
        """Return the second engine of this method, if there is one."""
        return next((other for other in self.engines() if other.side != engine.side), None)


def transfers(method: Method) -> bool:
    """Return whether the small model's thinking is transferred to the large one."""
    return any((ask.side, ask.of[:6]) == ("large", "small.") for ask in method.asks)


USABLE_IF: tuple[tuple[Collection[str], Callable[[Config], bool], str | None], ...] = (
    (("sparse_delta", "sparse_layer"), lambda config: config.transfer == "sparse", "transfer=sparse"),
    (
        ("transfer",),
        lambda config: transfers(config.method),
        "a method that transfers the small model's thinking to the large one, such as mai",
    ),
    (
        ("min_confidence",),
        lambda config: config.method.needs_threshold,
        "a stop with `sure` and no threshold of its own, as mai_confidence has",
    ),
    (("anls_threshold",), lambda config: config.infovqa_match == "anls", "infovqa_match=anls"),
    (("native_gen_kwargs", "max_thinking_tokens"), lambda config: bool(config.native), "think=native"),
    (("stop_repeats",), lambda config: bool(config.may_think), None),
    (AGREEMENT_OPTIONS, lambda config: any(stop.agree for stop in config.method.stops), None),
    (("transfer_answer",), lambda config: any(ask.of for ask in config.method.asks), None),
    (("think",), lambda config: bool(config.native) or "think" in {ask.prompt for ask in config.method.asks}, None),
)
"""Arguments, whether they can change the answers of a run, and what they need for it. None: they may be given to any
run."""
RUN_ARGUMENTS = frozenset(Config.model_fields) - {*SIDES, "calibration"}
"""The arguments of the run."""
DEFAULTS: dict[str, Any] = {name: field.default for name, field in Config.model_fields.items()}
"""Argument -> its default."""
GONE = dict.fromkeys(
    ("assistant_model", "num_assistant_tokens", "assistant_images"),
    "Give speculative_config to engine=vllm, or time assisted decoding with experiments/latency/table_12.py.",
)
"""Argument of an earlier version, also with small_ or large_ -> what to do instead."""
LMMS_EVALS_OWN = {
    "batch_size": "Leave it out.",
    "max_batch_size": "Leave it out.",
    "device": "Write small_device or large_device (engine=transformers), or small_devices or large_devices (vllm).",
}
"""Engine arguments that are options of lmms-eval too, and the remedy. In `--model_args` they take the place of the
option, or lmms-eval fails because both have a value."""


def refuse_lmms_evals_own(model_args: Mapping[str, Any]) -> None:
    """Refuse arguments in `--model_args` that would have no effect. Raises `ArgumentError`."""
    for name, remedy in LMMS_EVALS_OWN.items():
        if name in model_args:
            raise ArgumentError(
                f"{name}={model_args[name]} in --model_args has no effect on the engines, because lmms-eval has an "
                f"option --{name}. {remedy}"
            )


def parse(arguments: Mapping[str, Any]) -> Config:
    """Read model arguments as lmms-eval passes them. An argument of the run that is None is not given. Raises
    `ArgumentError`."""
    from_pair = pairs.load(arguments["pair"]) if arguments.get("pair") is not None else {}
    arguments = {name: value for name, value in arguments.items() if name != "pair"}
    given = {**from_pair, **arguments}  # the arguments of the command replace those of the pair's file
    for written, value in given.items():
        if (name := written.removeprefix("small_").removeprefix("large_")) in GONE:
            raise ArgumentError(f"{written}={value} is an argument of an earlier version. {GONE[name]}")
    values = {name: given[name] for name in RUN_ARGUMENTS if given.get(name) is not None}
    values |= {side: pairs.engine_config(side, from_pair, arguments, RUN_ARGUMENTS) for side in SIDES}
    if isinstance(values.get("min_confidence"), str):
        values["calibration"] = calibration.read(values["min_confidence"])
    config = read(Config, values)
    _check_choices(config, arguments)
    for engine in config.engines():
        _check_engine(engine, given)
    return config


def _check_choices(config: Config, given: Mapping[str, Any]) -> None:
    """Refuse arguments of the command that would have no effect, and a file without a threshold for the method. A
    pair's file may have both, but not a transfer that the method lacks."""
    for names, is_usable, needed in USABLE_IF:
        for name in names if needed and not is_usable(config) else ():
            if name in {*given, "transfer"} and (value := getattr(config, name)) != DEFAULTS[name]:
                raise ArgumentError(
                    f"{name}={value} has no effect without {needed}: give that too, or leave {name} out."
                )
    file = config.calibration
    if "min_confidence" in given and file is not None and config.calibrated is None:
        raise ArgumentError(
            f"min_confidence={config.min_confidence} has the thresholds of {', '.join(file.methods)}, and this run "
            f"has method={config.method.name}: choose one of the former, calibrate, or give a number."
        )


def _check_engine(engine: EngineConfig, given: Mapping[str, Any]) -> None:
    """Refuse an engine without a model, or with an argument that it does not have. `given`: all arguments as the user
    wrote them."""
    if not engine.model:
        example = "PATH of a JSON-lines script" if engine.engine == "scripted" else "http://HOST:PORT/v1"
        raise ArgumentError(f"engine={engine.engine} has no default model: give {engine.side}={example}.")
    # The names of vLLM's arguments need its import, so they are read only if there are arguments.
    known = argument_names(engine.engine) if engine.arguments else None
    unknown = next((name for name in engine.arguments if known is not None and name not in known), None)
    if known is None or unknown is None:
        return
    run_arguments = [*sorted(RUN_ARGUMENTS), *SIDES, "engine", "pair"]
    hint = did_you_mean(unknown, [*run_arguments, *known])
    if unknown in ("model", "pretrained", "model_version"):
        hint = " Give the two models as small=NAME and large=NAME."
    if not hint:
        others = ", ".join(sorted(known)) if len(known) < 50 else f"those of {engine.engine} itself"  # vLLM has 200
        hint = f" The arguments of mai_cascade: {', '.join(run_arguments)}. Of the {engine.engine} engine: {others}."
    written = f"{engine.side}_{unknown}" if f"{engine.side}_{unknown}" in given else unknown
    raise ArgumentError(
        f"Unknown model argument {written!r}: neither mai_cascade nor the {engine.engine} engine ({engine.side}) has "
        f"it.{hint}"
    )
