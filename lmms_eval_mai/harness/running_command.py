"""Finds the running lmms-eval command and the file of its results.

lmms-eval tells a model neither whether its command or a library call runs it, nor where the results go. Only the frames
of the functions that called the model tell this: those of the command (lmms_eval/__main__.py) and of the evaluation
(lmms_eval/evaluator.py, `simple_evaluate`).
"""

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from lmms_eval_mai.run.at_exit import at_exit


def configurations() -> int | None:
    """Return the number of configurations of the running `lmms-eval` command, or None in library use. A `--config` file
    may hold several. 1 if the number is not found."""
    counts = [frame.f_locals.get("args_list") for frame in _callers("lmms_eval/__main__.py")]
    return max((len(args) if isinstance(args, Sequence) else 1 for args in counts), default=None)


def gen_kwargs() -> Mapping[str, Any]:
    """Return the `--gen_kwargs` of the evaluation that called this function. Empty if there are none, or if they are
    not found."""
    given = _evaluation().get("gen_kwargs")
    return given if isinstance(given, Mapping) else {}


def results_file() -> Path | None:
    """Return the file to which lmms-eval will write the results of the evaluation that called this function. None: it
    will write no file. Raises `LookupError` if this version of lmms-eval has other names for these things."""
    evaluation = _evaluation()
    if not evaluation and configurations() is None:
        return None
    try:
        tracker = evaluation["evaluation_tracker"]
        if tracker is None or not tracker.output_path:
            return None
        folder = Path(tracker.output_path, tracker.general_config_tracker.model_name_sanitized)
        return folder / f"{evaluation['datetime_str'].replace(':', '-')}_results.json"
    except (AttributeError, KeyError, TypeError) as error:
        raise LookupError(f"{type(error).__name__}: {error}") from error


def print_last(text: str) -> None:
    """Print `text` below lmms-eval's own tables: at the end of the process. In library use, print it now."""
    if configurations() is None:
        print(text, flush=True)
    else:
        at_exit(functools.partial(print, text, flush=True))


def _evaluation() -> Mapping[str, Any]:
    """Return the local variables of the evaluation that called this function. Empty if there is none."""
    frames = _callers("lmms_eval/evaluator.py")
    return next((frame.f_locals for frame in frames if frame.f_code.co_name == "simple_evaluate"), {})


def _callers(file: str) -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(file):
            yield frame
        frame = frame.f_back
