"""The decoding arguments of tasks and of `--gen_kwargs`: their names, and checks of their values.

A name that is neither used nor known to be harmless is refused, so that no argument is ignored by accident.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.readers import parse_literal

NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("a number of at least 0", lambda value: value >= 0),
    "top_p": ("a number above 0 and at most 1", lambda value: 0 <= value <= 1),
    "top_k": ("a whole number of at least 1, or -1 for no limit", lambda value: value.is_integer() and value >= -1),
    "min_p": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("a number above 0", lambda value: value >= 0),
    "presence_penalty": ("a number from -2 to 2", lambda value: -2 <= value <= 2),
    "frequency_penalty": ("a number from -2 to 2", lambda value: -2 <= value <= 2),
    "max_new_tokens": ("a whole number of at least 1", lambda value: value.is_integer() and value >= 0),
    "seed": ("a whole number below 2**63", lambda value: value.is_integer() and abs(value) < 2**63),
    "n": ("1, because each call has one answer", lambda value: value == 1),
    "num_beams": ("1, because no engine has beam search", lambda value: value in (0, 1)),
}
"""Decoding argument -> the text for the error message, and the check. 0 passes where it means "not given": tasks of
lmms-eval have `top_p: 0`, for example."""

NAMES = [*NUMBERS, "stop"]
"""The decoding arguments that are used."""

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


def check_names(given: Mapping[str, Any]) -> None:
    """Refuse unknown decoding arguments. Raises `ArgumentError`."""
    for name in given:
        if name not in NAMES and name not in IGNORED:
            hint = did_you_mean(name, NAMES) or f" Decoding arguments: {', '.join(NAMES)}."
            raise ArgumentError(
                f"The decoding argument {name} is unknown.{hint} Correct it in --gen_kwargs, or in "
                "generation_kwargs of the task."
            )


def ignored_arguments(gen_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the arguments that are ignored although their values ask for something."""
    return [
        name for name, value in gen_kwargs.items() if name in IGNORED and value is not None and not IGNORED[name](value)
    ]


def check_preset(decoding: str, official: Mapping[str, Any] | None) -> None:
    """Check the arguments `decoding` and `official_decoding`; the values of the second one also if they are not used.
    Raises `ArgumentError`."""
    if official is not None:
        for name in official:
            if name not in NAMES:
                raise ArgumentError(f"official_decoding has {name!r}, which is unknown.{did_you_mean(name, NAMES)}")
            stop_texts(official[name]) if name == "stop" else number(name, official[name])
    elif decoding == "official":
        raise ArgumentError(
            "decoding=official needs decoding arguments that are published for the models, and none are known for "
            "these. Choose a pair that has them, such as pair=qwen3vl-2b-8b, or give official_decoding={...}."
        )


def number(name: str, given: Any) -> float | None:
    """Return a decoding argument as a number, or None if it is not given. Raises `ArgumentError`."""
    if given is None or given == "":
        return None
    expected, works = NUMBERS[name]
    try:
        value = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and works(value)):
        raise _invalid(name, given, expected)
    return given if isinstance(given, int) else value  # a large seed does not fit a float


def stop_texts(given: Any) -> tuple[str, ...]:
    """Return the texts that end an answer. lmms-eval passes a list on as text. Raises `ArgumentError`."""
    expected = 'a text, or a JSON list of texts such as ["[[","\\n\\n"]'
    try:
        found = parse_literal(given, "stop")
    except ArgumentError:
        raise _invalid("stop", given, expected) from None
    if found is None or found == "":
        return ()
    texts = [found] if isinstance(found, str) else found
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise _invalid("stop", given, expected)
    return tuple(texts)


def _invalid(name: str, given: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        f"The decoding argument {name}={given} is invalid: expected {expected}. Correct it in --gen_kwargs, or in "
        "generation_kwargs of the task."
    )
