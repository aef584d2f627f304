"""Finds the running lmms-eval command and its output folder.

lmms-eval tells a model neither its output folder nor whether its command or a library call runs it. Only the frame of
the command's function has both (lmms_eval/__main__.py, `cli_evaluate`). If the frame does not look as expected, or if
that module calls us through another function, `Command.known` is False. The results then count as not written, and the
journal stays.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

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


def results_written(command: Command | None) -> Callable[[], bool] | None:
    """Return a function that tells whether the command has written its results since this call.

    Returns None in library use, where the caller already has the results. Without `--output_path` the command only
    prints its results, and the function returns True. If the command is not known, the function returns False.
    """
    if command is None:
        return None
    if not command.known:
        return lambda: False
    output_path, since = command.output_path, time.time() - 1  # file systems round times
    if output_path is None:
        return lambda: True
    return lambda: any(file.stat().st_mtime >= since for file in Path(output_path).rglob("*_results.json"))


def print_last(command: Command | None, text: str) -> None:
    """Print `text` below lmms-eval's own tables: at the end of the process. In library use, print it now."""
    if command is None:
        print(text, flush=True)
    else:
        at_exit(functools.partial(print, text, flush=True))


def _is_command(frame: FrameType) -> bool:
    return frame.f_code.co_name == "cli_evaluate" and _is_in_command_module(frame)


def _is_in_command_module(frame: FrameType) -> bool:
    return frame.f_code.co_filename.replace("\\", "/").endswith("lmms_eval/__main__.py")
