"""What the commands share: messages on the terminal, and the values of some options."""

import sys
from typing import Any

from loguru import logger

from lmms_eval_mai.errors import ArgumentError


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


def names_of(text: str | None) -> list[str]:
    """Return the names in a text with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
