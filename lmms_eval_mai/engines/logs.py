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
def quiet_transformers() -> Iterator[None]:
    """Hide the progress bars of transformers ("Loading weights") and its warnings inside the `with` block."""
    from transformers.utils import logging

    if is_debug():
        yield
        return
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
