"""How much the libraries of the engines print. By default only warnings that concern the user.

`--verbosity DEBUG` of lmms-eval, which sets the variable `VERBOSITY`, leaves every library as it is.
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
