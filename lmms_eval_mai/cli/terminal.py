"""What the commands share: messages on the terminal, and lists of names."""

import sys

from loguru import logger


def tell(text: str) -> None:
    """Print a message to standard error."""
    print(f"lmms-eval-mai: {text}", file=sys.stderr, flush=True)


def log_to_terminal() -> None:
    """Show warnings, and the information of this package, on the terminal."""
    logger.remove()
    logger.add(sys.stderr, format="{message}", filter={"": "WARNING", "lmms_eval_mai": "INFO"})


def log_warnings_only() -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")


def names_of(text: str | None) -> list[str]:
    """Return the names in a text with commas, each once."""
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
