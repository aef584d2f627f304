"""What the commands share: messages on the terminal, and lists of names."""

import sys

from loguru import logger


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


def names_of(text: str | None) -> list[str]:
    """Return the names in a text with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
