"""The decoding of each call, from the decoding arguments of a task and of `--gen_kwargs`.

Values reach the engines as lmms-eval's own vllm model passes them on. A name that is neither used nor known to be
harmless is refused, so that no argument is ignored by accident.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from lmms_eval_mai.contract import PROMPTS, CallPrompt, Repetition, Sampling
from lmms_eval_mai.engines.arguments import Arguments, did_you_mean, parse_literal, read
from lmms_eval_mai.engines.build import check_sampling
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.prompts import MAX_TOKENS
from lmms_eval_mai.run.config import Config

MAI_TASK: dict[str, Any] = {"temperature": 0, "top_p": 1, "max_new_tokens": MAX_TOKENS, "num_beams": 1}
"""The values in the task files of this package."""


def _texts(value: Any) -> Any:
    """Return the texts that end an answer. lmms-eval passes a list on as JSON text."""
    value = parse_literal(value)
    return (value,) if isinstance(value, str) else () if value is None else value


class NextToken(Arguments):
    """The arguments that decide how the next token is chosen, in tasks and in requests to the server. The upper
    limits are far above useful values: a larger number may be infinite in the 32 bits of an engine."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    seed: Annotated[int, Field(gt=-(2**63), lt=2**63)] | None = None


class Decoding(NextToken):
    """The decoding arguments of a task that are used. 0 stands for "not given" where it cannot be a value: tasks of
    lmms-eval have `top_p: 0`, for example. An engine may refuse more, before it starts (`check_sampling`)."""

    top_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0, le=100)] = 0.0
    max_new_tokens: Annotated[int, Field(ge=0)] = 0
    n: Literal[1] = 1
    num_beams: Literal[0, 1] = 1
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts)] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):  # pydantic reads True as 1
            raise ValueError(f"expected a value that is not {value}")
        return value

    def sampling(self, most: int, config: Config, repeat: int, thinking_token_budget: int | None = None) -> Sampling:
        """Return how a call with at most this many output tokens is decoded."""
        return Sampling(
            max_tokens=min(most, config.max_new_tokens or most),
            temperature=self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else self.seed + repeat,
            stop=self.stop,
            thinking_token_budget=thinking_token_budget,
        )


NAMES = tuple(Decoding.model_fields)

IGNORED: dict[str, Callable[[Any], bool]] = {
    "until": lambda value: value in ([], ["\n\n"]),  # lmms-eval's default, an empty line, would end thinking too early
    "do_sample": lambda value: True,  # the temperature decides
    "image_aspect_ratio": lambda value: True,  # for LLaVA
    "patch_size": lambda value: True,  # for InternVL's own code
    "downsample_ratio": lambda value: True,
    "min_pixels": lambda value: False,
    "max_pixels": lambda value: False,
    "system_prompt": lambda value: not value,
    "stop_sequences": lambda value: not value,
    "skip_special_tokens": lambda value: value is True,
    "visual_cot": lambda value: not value,
    "max_agentic_steps": lambda value: False,
}
"""Arguments in lmms-eval's task files that are ignored, as lmms-eval's vllm model ignores them -> whether a value asks
for nothing that mai_cascade does not do."""


def ignored_arguments(gen_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the arguments that are ignored although their values ask for something."""
    return [
        name for name, value in gen_kwargs.items() if name in IGNORED and value is not None and not IGNORED[name](value)
    ]


def sampling(
    gen_kwargs: Mapping[str, Any], config: Config, is_mai_task: bool, repeat: int = 0
) -> dict[CallPrompt, Sampling]:
    """Return how each call is decoded. Raises `ArgumentError` for an unknown name, or for a value that cannot work or
    that an engine of the run refuses.

    `is_mai_task`: whether it is a task of this package. Its limit applies to every call. The limit of another lmms-eval
    task applies to its short answers; its thinking and the answers with thinking have at least `MAX_TOKENS`. With a
    seed, each repeat adds its number to it, so that repeats differ. None and an empty text count as not given. In a
    call in which the model thinks by itself, the values of `native_gen_kwargs` replace others.
    """
    if is_mai_task and gen_kwargs.get("until"):
        raise ArgumentError(
            f"until={gen_kwargs['until']} is ignored in other lmms-eval tasks and not supported in this one. Give "
            "stop=TEXT in --gen_kwargs if an answer must end at a text."
        )
    gen_kwargs = {name: value for name, value in gen_kwargs.items() if name not in IGNORED}
    native_gen_kwargs = config.native_gen_kwargs or {}
    read_decoding(native_gen_kwargs, "In native_gen_kwargs, ")  # names the argument in a message
    given = read_decoding(gen_kwargs)
    limit = given.max_new_tokens or MAX_TOKENS
    most = limit if is_mai_task else max(limit, MAX_TOKENS)
    short, long = given.sampling(limit, config, repeat), given.sampling(most, config, repeat)
    native = read_decoding({**gen_kwargs, **native_gen_kwargs}).sampling(
        int(native_gen_kwargs.get("max_new_tokens") or most + (config.max_thinking_tokens or 0)),
        config,
        repeat,
        config.max_thinking_tokens,
    )
    for engine in config.engines():
        for one in (short, native):  # `long` differs in its limit only
            if one != Sampling(one.max_tokens):
                check_sampling(engine.engine, one)
    repetition = Repetition() if config.stop_repeats else None
    thinking, native = (replace(one, repetition_detection=repetition) for one in (long, native))
    return {
        prompt: native if prompt == "native" else short if row.is_short else thinking if row.thinks else long
        for prompt, row in PROMPTS.items()
        if prompt != "score"
    }


def unusual(gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoding arguments that are used and are not those of the tasks of this package, for the trace."""
    return {
        name: value
        for name, value in sorted(gen_kwargs.items())
        if name in NAMES
        and value not in (None, "", MAI_TASK.get(name))
        and value != Decoding.model_fields[name].default
    }


def read_decoding(given: Mapping[str, Any], prefix: str = "The decoding argument ") -> Decoding:
    """Check decoding arguments. `prefix`: begins a message. Raises `ArgumentError`."""
    for name in given:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES) or f" Decoding arguments: {', '.join(NAMES)}."
            raise ArgumentError(f"{prefix}{name} is unknown.{hint}")
    values = {name: value for name, value in given.items() if value is not None and value != ""}
    return read(Decoding, values, prefix)
