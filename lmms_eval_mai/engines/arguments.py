"""Checks of argument names and values that all engines share."""

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from lmms_eval_mai.errors import ArgumentError

_SLEEP = (
    "two models do not take turns on one GPU any more. Use quantization=fp8, with which both models need about half of "
    "the memory, or a smaller pair. `lmms-eval-mai doctor` shows what fits."
)
_FAULTS = "the scripted engine reads faults from its script now: give a record fault=error, fault=hang or fault=death."

REMOVED: dict[str, str] = {
    "sleep": _SLEEP,
    "sleep_mode": _SLEEP,
    "renderer_processes": "vLLM's own renderer prepares the prompts now. More images per second come from more ranks "
    "(torchrun) or from vLLM servers (small=http://HOST:PORT/v1).",
    "batch_profile": "the scripted engine does not simulate batches any more. Each call takes the time of its record "
    "(`seconds`), or of ttft_s and tokens_per_s.",
    "error_rate": _FAULTS,
    "garbage_rate": f"{_FAULTS} Noise is a record whose text is noise.",
    "hang_rate": _FAULTS,
    "death_rate": _FAULTS,
    "fault_seed": _FAULTS,
}
"""Arguments of earlier versions, without the prefix of a side, and what happens or what to use instead."""


def refuse_removed_arguments(given: Iterable[str]) -> None:
    """Refuse arguments of earlier versions, for one side or for both. Raises `ArgumentError`."""
    for name in given:
        instead = REMOVED.get(name.removeprefix("small_").removeprefix("large_"))
        if instead is not None:
            raise ArgumentError(f"The argument {name} was removed: {instead}")


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
