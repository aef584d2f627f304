"""Limits the output of the engines' libraries: by default to warnings that concern the user.

With `--verbosity DEBUG` lmms-eval sets the variable `VERBOSITY`, and the output of every library stays as it is.
"""

import contextlib
import os
from collections.abc import Iterator


def is_debug() -> bool:
    """Return whether the user asked lmms-eval for its most detailed output."""
    return os.environ.get("VERBOSITY", "").upper() == "DEBUG"


@contextlib.contextmanager
def transformers_without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers ("Loading weights") inside the `with` block."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    if is_debug() or not was_enabled:
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
