"""The command `lmms-eval-mai`, also `python -m lmms_eval_mai`: lists pairs and task files, and checks a set-up.

The parser and the short commands are here. `doctor.py` checks the packages, the devices, the arguments and the tasks.
`gpu_report.py` shows the plan of the GPU memory, for this and for other machines.

This package may import all others, and no other package imports it. It does not run evaluations; `lmms-eval` does.

To add a command, add a parser to `_parser` and a branch to `main`, and put its work into a module of its own.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence

import lmms_eval_mai
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets

WIDTH = 110
"""Columns of a printed text."""


def main(given: Sequence[str] | None = None) -> None:
    """Run the command with these arguments; None: those of the process."""
    parser = _parser()
    arguments, others = parser.parse_known_args(given)
    if arguments.command == "doctor":  # it takes a whole lmms-eval command and ignores what does not concern us
        sys.exit(_doctor(arguments.model, arguments.model_args, arguments.tasks, arguments.gpus))
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    if arguments.command is None:
        parser.print_help()
    elif arguments.command == "task-dir":
        print(task_dir())
    else:
        _print_pairs()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    parser.add_argument("--version", action="version", version=f"lmms-eval-mai {lmms_eval_mai.__version__}")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("pairs", help="list the named pairs", description="List the named pairs.")
    commands.add_parser(
        "task-dir",
        help="print the folder of the task files",
        description="Print the folder of the task files, for lmms-eval's --include-path.",
    )
    doctor = commands.add_parser(
        "doctor",
        allow_abbrev=False,  # --model must not be read as a short form of --model_args
        help="check the installation, and what an lmms-eval command would start",
        description="Check the packages, the devices and the tasks. Add the arguments of an lmms-eval command to check "
        "its model arguments and tasks too, and to see which engines the command would start on which devices. This "
        "takes up to half a minute. The exit code is 1 if there is a problem. With --gpus, only the memory plan for "
        "such GPUs is shown; no GPU and no download is needed for the named pairs.",
    )
    doctor.add_argument(
        "--model",
        default=None,
        help="accepted, so that a whole lmms-eval command can be pasted. With --model and without --model_args, the "
        "default arguments are checked",
    )
    doctor.add_argument("--model_args", default=None, help="check these model arguments (format as in lmms-eval)")
    doctor.add_argument("--tasks", default=None, help="check that these tasks exist (format as in lmms-eval)")
    doctor.add_argument(
        "--gpus",
        default=None,
        metavar="GPUS",
        help="show how the models of the command (default: the default pair) would share the memory of other GPUs, for "
        "example 24GiB, 2x48GiB, L4, 8xH100. The exit code is 1 if they do not fit",
    )
    return parser


def _doctor(model: str | None, model_args: str | None, tasks: str | None, gpus: str | None) -> int:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # the report should fit one screen
    from loguru import logger

    from lmms_eval_mai.cli import gpu_report
    from lmms_eval_mai.cli.doctor import check_arguments, examine, report

    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")
    if gpus is not None:
        config, finding = check_arguments(model_args or "")
        return gpu_report.report(gpus, config) if config is not None else report([finding])
    if model_args is None and model is not None:
        model_args = ""
    return report(examine(model_args, tasks))


def _print_pairs() -> None:
    """Print each pair on one line, and below it the paper's use of it."""
    width = max(map(len, presets.names()))
    for name in presets.names():
        default = " (default)" if name == presets.DEFAULT else ""
        print(f"{name:<{width}}  {' + '.join(presets.models(name))}{default}")
        indent = " " * (width + 2)
        print(textwrap.fill(presets.description(name), WIDTH, initial_indent=indent, subsequent_indent=indent))
