"""What the commands share: messages on the terminal, exit codes, and the values of some options."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from loguru import logger

from lmms_eval_mai.errors import ArgumentError, MaiError


def exit_code_of(run: Callable[[], int | None], after_interrupt: str) -> int:
    """Run a command. Returns its exit code, 1 after a `MaiError`, or 130 after Ctrl-C. `after_interrupt`: a sentence
    that is added to the message about Ctrl-C."""
    try:
        return run() or 0
    except MaiError as error:
        tell(str(error))
        return 1
    except KeyboardInterrupt:
        tell(f"stopped by Ctrl-C. {after_interrupt}".rstrip())
        return 130


def tell(text: str) -> None:
    """Print a message to standard error."""
    print(f"lmms-eval-mai: {text}", file=sys.stderr, flush=True)


def log_to_terminal() -> None:
    """Show warnings, and the information of this package, on the terminal."""
    log_warnings_only()
    logger.add(
        sys.stderr,
        level="INFO",
        format="{message}",
        filter=lambda record: record["level"].name == "INFO" and str(record["name"]).startswith("lmms_eval_mai"),
    )


def log_warnings_only() -> None:
    """Show warnings on the terminal, and no information."""
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")


def values_of(option: str, text: str) -> dict[str, Any]:
    """Parse an option's `NAME=VALUE,...` as lmms-eval does. Raises `ArgumentError`."""
    from lmms_eval.utils import simple_parse_args_string  # takes seconds

    try:
        values: dict[str, Any] = simple_parse_args_string(text)
    except ValueError:
        raise ArgumentError(f"{option} must be NAME=VALUE,NAME=VALUE: a part of it has no '='.") from None
    return values


def refuse(arguments: Mapping[str, Any], set_here: Mapping[str, str]) -> None:
    """Refuse model arguments that a command sets itself. `set_here`: name -> why. Raises `ArgumentError`."""
    for name in set_here.keys() & arguments.keys():
        raise ArgumentError(f"{name}={arguments[name]} has no effect here, because {set_here[name]}. Leave it out.")


def names_of(text: str | None) -> list[str]:
    """Return the names in a text with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def check_at_least_one(given: argparse.Namespace, *options: str) -> None:
    """Refuse a number below 1. None: not given. Raises `ArgumentError`."""
    for option in options:
        number = getattr(given, option)
        if number is not None and number < 1:
            raise ArgumentError(f"--{option} {number} is invalid: expected at least 1.")
