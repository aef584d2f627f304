"""Readers of single model arguments: each gets the name and the value as lmms-eval passes it, checks and converts it.

`READERS` lists every argument of the run. An argument that is not listed belongs to an engine.
"""

import ast
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.engines.arguments import positive_int
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.confidence import Verify

Reader = Callable[[str, Any], Any]
"""Gets the name and the value as lmms-eval passes it. Returns the value to use. Raises `ArgumentError`."""


def choice(allowed: Iterable[Any]) -> Reader:
    options = list(allowed)

    def read(name: str, value: Any) -> Any:
        if value not in options:
            shown = [str(option).lower() if isinstance(option, bool) else str(option) for option in options]
            raise ArgumentError(f"{name}={value} is unknown: choose one of {', '.join(shown)}.")
        return value

    return read


def _number(least: float) -> Reader:
    def read(name: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise ArgumentError(f"{name}={shown} is invalid: expected a number of at least {least:g}.")
        return value

    return read


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ArgumentError(f"{name}={value} is invalid: expected a number above 0 and at most 1.")
    return float(value)


def _min_confidence(name: str, value: Any) -> float | str:
    """Return a threshold, or the path of a file of `lmms-eval-mai calibrate`."""
    return value if isinstance(value, str) else _fraction(name, value)


def _layer(name: str, value: Any) -> int | float:
    """Return the number of a layer as an int, or a share of all layers as a float. 1.0 could be either."""
    if not isinstance(value, bool) and isinstance(value, int | float):
        if isinstance(value, float) and 0 < value < 1:
            return value
        if float(value).is_integer() and (value > 1 or (value == 1 and isinstance(value, int))):
            return int(value)
    raise ArgumentError(
        f"{name}={value} is invalid: expected the number of a layer (1, 2, ...) or a share of the layers between 0 and "
        "1, such as 0.33."
    )


def _max_errors(name: str, value: Any) -> float:
    allowed: float = _number(0)(name, value)
    if allowed > 1 and allowed != int(allowed):
        raise ArgumentError(f"{name}={allowed:g} is invalid: expected a number of samples, or a share below 1.")
    return allowed


def _journal(name: str, value: Any) -> str | None:
    """Return None for the default folder, `off`, or the given folder. lmms-eval reads true and false as bool."""
    if value is True or value == "on":
        return None
    return "off" if value is False else str(parse_literal(value, name) or "off")


def parse_literal(value: Any, name: str) -> Any:
    """Convert an engine argument: JSON or Python text of a dict or list, quoted text, or none. Raises
    `ArgumentError`."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in ("none", "null"):
        return None
    if text[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(text)
            except (ValueError, SyntaxError):
                continue
        # The message leaves out the value, which may hold a key.
        raise ArgumentError(f'{name} is neither JSON nor a Python literal. Quote the names in it, e.g. {{"image": 8}}.')
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any] | None:
    found = parse_literal(value, name)
    if found is not None and not isinstance(found, Mapping):
        raise ArgumentError(f'{name}={value} is invalid: expected a mapping such as {{"temperature":0.7}}.')
    return found


READERS: dict[str, Reader] = {
    "mode": choice(MODES),
    "think": choice(("R", "E")),
    "verify": choice(get_args(Verify)),
    "min_confidence": _min_confidence,
    "max_open_samples": positive_int,
    "max_new_tokens": positive_int,
    "decoding": choice(("greedy", "official")),
    "official_decoding": _mapping,
    "on_overflow": choice(("truncate", "error")),
    "transfer_answer": choice(("cut", "keep")),
    "transfer": choice(("full", "sparse")),
    "sparse_delta": _fraction,
    "sparse_layer": _layer,
    "sparse_from": choice(("large", "small")),
    "sparse_order": choice(("original", "weight")),
    "sparse_boundary": choice(("least", "most")),
    "journal": _journal,
    "log_prompts": choice((True, False)),
    "max_errors": _max_errors,
    "call_timeout": _number(1e-3),
    "engine_restarts": lambda name, value: int(_number(0)(name, value)),
    "keep": choice((True, False)),
    "model_name": lambda name, value: str(value),
    "anls_threshold": _fraction,
    "chartqa_match": choice(("exact", "relaxed")),
}
"""Every argument of `Config` and `AgreementRules` except the engines."""

RULES = [field.name for field in dataclasses.fields(AgreementRules)]
OWN_NAMES = [*READERS, *SIDES, "engine", "pair"]
