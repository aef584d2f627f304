"""Collects what the package logs."""

import contextlib
from collections.abc import Iterator

from loguru import logger


@contextlib.contextmanager
def logged(level: str = "INFO") -> Iterator[list[str]]:
    """Collect the messages that are logged inside the block, at this level or above."""
    messages: list[str] = []
    sink = logger.add(lambda message: messages.append(message.record["message"]), level=level)
    try:
        yield messages
    finally:
        logger.remove(sink)
