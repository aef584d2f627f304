"""Checks that new processes can run the user's script again: vLLM starts its engines as such processes."""

import sys

from lmms_eval_mai.errors import EngineUnavailable

FROM_STDIN = "<stdin>"
"""The `__file__` of a script that Python reads from standard input. Interactive Python, notebooks and `python -c` have
no `__file__`: new processes then run nothing again."""


def refuse_script_from_stdin() -> None:
    """Refuse to start engines in other processes if Python reads the script from standard input, as in
    `python - <<EOF`. Without this check the start fails late, with an error that names no cause. Raises
    `EngineUnavailable`."""
    if getattr(sys.modules.get("__main__"), "__file__", None) == FROM_STDIN:
        raise EngineUnavailable(
            "vLLM starts its engines as new processes, which run the script again. Python reads this script from "
            "standard input, so they cannot. Save it as a file that starts the engines under "
            '`if __name__ == "__main__":`, and run this file.'
        )
