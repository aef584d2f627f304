"""Finds the running lmms-eval command and its output folder.

lmms-eval tells a model neither its output folder nor whether its command or a library call runs it. Only the frame of
the command's function has both (lmms_eval/__main__.py, `cli_evaluate`). If the frame does not look as expected, or if
that module calls us through another function, `Command.known` is False. The results then count as not written, and the
journal stays. The name of the results file and `--gen_kwargs` are in the frame of the evaluation
(lmms_eval/evaluator.py, `simple_evaluate`).
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from loguru import logger

from lmms_eval_mai.run.at_exit import at_exit


@dataclass(frozen=True)
class Command:
    """A running `lmms-eval` command."""

    output_path: str | None
    """`--output_path` of the configuration that runs. None: not given, or unknown."""
    configurations: int
    """Number of configurations; a `--config` file may hold several. 1 if unknown."""
    known: bool
    """Whether the command's frame looks as expected."""


def running_command() -> Command | None:
    """Return the command that called this function, or None in library use."""
    frame: FrameType | None = sys._getframe()
    other_function = False
    while frame is not None and not _is_command(frame):
        other_function = other_function or _is_in_command_module(frame)
        frame = frame.f_back
    if frame is None:
        return Command(output_path=None, configurations=1, known=False) if other_function else None
    args, args_list = frame.f_locals.get("args"), frame.f_locals.get("args_list")
    configurations = len(args_list) if isinstance(args_list, Sequence) else 1
    return Command(
        output_path=getattr(args, "output_path", None),
        configurations=configurations,
        known=hasattr(args, "output_path") and isinstance(args_list, Sequence),
    )


def results_written(command: Command | None, file: Path | None) -> Callable[[], bool] | None:
    """Return a function that tells whether the command has written its results. `file`: `results_file()`.

    Returns None in library use, where the caller already has the results. Without `--output_path` the command only
    prints its results, and the function returns True. If the command or the name of the file is not known, the function
    returns False.
    """
    if command is None:
        return None
    if not command.known:
        return lambda: False
    if command.output_path is None:
        return lambda: True
    return lambda: file is not None and file.exists()


def gen_kwargs() -> Mapping[str, Any]:
    """Return the `--gen_kwargs` of the evaluation that called this function. Empty if there are none, or if they are
    not found."""
    frame = _evaluation_frame()
    given = None if frame is None else frame.f_locals.get("gen_kwargs")
    return given if isinstance(given, Mapping) else {}


def results_file() -> Path | None:
    """Return the file to which lmms-eval will write the results of the evaluation that called this function. None: it
    will write no file."""
    frame = _evaluation_frame()
    tracker = None if frame is None else frame.f_locals.get("evaluation_tracker")
    if frame is None or tracker is None:
        return None
    try:
        folder = tracker.output_path and Path(tracker.output_path) / tracker.general_config_tracker.model_name_sanitized
        return Path(folder, f"{frame.f_locals['datetime_str'].replace(':', '-')}_results.json") if folder else None
    except (AttributeError, KeyError, TypeError) as error:  # another version of lmms-eval
        logger.warning(
            "mai_cascade: the figures of this run are not written beside lmms-eval's results, because the name of the "
            f"results file was not found ({type(error).__name__}: {error}). Install lmms-eval 0.7.3."
        )
        return None


def _evaluation_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_function(frame, "simple_evaluate", "lmms_eval/evaluator.py"):
        frame = frame.f_back
    return frame


def print_last(command: Command | None, text: str) -> None:
    """Print `text` below lmms-eval's own tables: at the end of the process. In library use, print it now."""
    if command is None:
        print(text, flush=True)
    else:
        at_exit(functools.partial(print, text, flush=True))


def _is_command(frame: FrameType) -> bool:
    return _is_function(frame, "cli_evaluate", "lmms_eval/__main__.py")


def _is_in_command_module(frame: FrameType) -> bool:
    return _is_function(frame, frame.f_code.co_name, "lmms_eval/__main__.py")


def _is_function(frame: FrameType, name: str, file: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename.replace("\\", "/").endswith(file)
