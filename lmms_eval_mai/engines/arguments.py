"""Checks of argument names and values that all engines share."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from lmms_eval_mai.errors import ArgumentError


def reject_unknown_arguments(
    side: str, given: Iterable[str], known: Collection[str], engine: str, suggestions: Collection[str] = ()
) -> None:
    """Refuse names that are not in `known`, and suggest near ones of `known` and `suggestions`. Raises
    `ArgumentError`."""
    for name in given:
        if name in known:
            continue
        hint = did_you_mean(name, [*suggestions, *known])
        if name in ("model", "pretrained", "model_version"):
            hint = " Give the two models as small=NAME and large=NAME."
        if not hint:
            of_engine = ", ".join(sorted(known)) if len(known) < 50 else f"those of {engine} itself"  # vLLM has 200
            hint = f" The arguments of mai_cascade: {', '.join(suggestions)}. Of the {engine} engine: {of_engine}."
        raise ArgumentError(
            f"Unknown model argument {name!r}: neither mai_cascade nor the {engine} engine ({side}) has it.{hint}"
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with up to three similar names, for the end of a message. Empty if no name is similar."""
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def number(name: str, value: Any, least: float = 0) -> None:
    """Refuse a value that is not a number of at least `least`. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise ArgumentError(f"{name}={value} is invalid: expected a number of at least {least:g}.")


def positive_int(name: str, value: Any) -> int:
    """Return `value` as a whole number of at least 1; lmms-eval may have read it as a float. Raises `ArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 1:
        shown = f"{value:g}" if isinstance(value, float) else value
        raise ArgumentError(f"{name}={shown} is invalid: expected a whole number of at least 1.")
    return int(value)
