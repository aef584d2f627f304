"""`lmms-eval-mai`, or `python -m lmms_eval_mai`: what this package has, for people and scripts.

`lmms-eval-mai pairs` lists the named pairs, for `--model_args pair=...`; `task-dir` prints the folder of the task
YAMLs, for `--include-path`; `doctor` says what can run here, and with the arguments of an `lmms-eval` command behind it
what that command would start.
"""

import argparse
import os
import sys

from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run import presets


def main() -> None:
    parser = argparse.ArgumentParser(prog="lmms-eval-mai")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pairs", help="list the named pairs", description="List the named pairs.")
    commands.add_parser("task-dir", help="print the folder of the task YAMLs")
    doctor = commands.add_parser(
        "doctor",
        allow_abbrev=False,  # --model is lmms-eval's and none of ours
        help="say what is installed, what can run here, and what a command would start",
        description="Say what is installed and what can run here; behind it the arguments of an lmms-eval command, to "
        "say what that would start and where. Takes up to half a minute; the exit code is 1 where there is a problem.",
    )
    doctor.add_argument("--model", default=None, help="as for lmms-eval; with it, and no --model_args, the defaults")
    doctor.add_argument("--model_args", default=None, help="as for lmms-eval")
    doctor.add_argument("--tasks", default=None, help="as for lmms-eval")
    arguments, others = parser.parse_known_args()
    if arguments.command == "doctor":  # the rest of an lmms-eval command says nothing about us
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # one screen
        from loguru import logger

        from lmms_eval_mai.cli.doctor import examine, report

        logger.remove()
        logger.add(sys.stderr, level="ERROR")
        model_args = arguments.model_args if arguments.model_args is not None else "" if arguments.model else None
        sys.exit(report(examine(model_args, arguments.tasks)))
    if others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    if arguments.command == "task-dir":
        print(task_dir())
    else:
        _print_pairs()


def _print_pairs() -> None:
    width = max(map(len, presets.names()))
    for name in presets.names():
        preset = presets.load(name)
        default = " (default)" if name == presets.DEFAULT else ""
        print(f"{name:<{width}}  {preset['small']} + {preset['large']}{default}")
