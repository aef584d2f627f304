"""Runs a command and turns its errors into a sentence on the terminal and an exit code."""

import sys
from collections.abc import Callable

from lmms_eval_mai.errors import MaiError


def exit_code_of(run: Callable[[], None], after_interrupt: str = "") -> int:
    """Run a command. Returns 0, 1 after a `MaiError`, or 130 after Ctrl-C. `after_interrupt`: a sentence that is added
    to the message about Ctrl-C."""
    try:
        run()
    except MaiError as error:
        print(f"lmms-eval-mai: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"lmms-eval-mai: stopped by Ctrl-C. {after_interrupt}".rstrip(), file=sys.stderr)
        return 130
    return 0
