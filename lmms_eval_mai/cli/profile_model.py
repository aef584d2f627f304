"""`lmms-eval-mai profile`: the times of models on this machine (Tables 1 to 4, Figure 1 (a)), and of batches."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmms_eval_mai.cli.ask import log_to_terminal
from lmms_eval_mai.cli.exit_code import exit_code_of
from lmms_eval_mai.cli.report import FORMATS, write
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.contract import EngineConfig
    from lmms_eval_mai.times.measure import Plan
    from lmms_eval_mai.times.profile import Profile

ENGINES = ("vllm", "transformers")
"""Engines that have a tokenizer and report image tokens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="MODEL", help="measure this checkpoint: a path or a name on the hub")
    source.add_argument("--pair", metavar="PAIR", help="measure both models of a named pair, and compare them")
    source.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="print the tables of earlier profiles")
    parser.add_argument("--engine", choices=ENGINES, default="vllm", help="default: vllm")
    parser.add_argument("--model_args", default="", help="more engine arguments (format as in lmms-eval)")
    parser.add_argument("--output_path", type=Path, default=Path(), metavar="DIR", help="the folder of the profiles")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cells: minutes on a CPU with pair demo")
    parser.add_argument("--repeats", type=int, metavar="N", help="measure each cell N times")
    parser.add_argument("--format", choices=FORMATS, default="markdown", help="default: markdown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the tables to this file")


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    log_to_terminal()
    return exit_code_of(lambda: _run(given), after_interrupt="Profiles that are complete are kept.")


def _run(given: argparse.Namespace) -> None:
    """Measure or read profiles, and print their tables. Raises a `MaiError`."""
    from lmms_eval_mai.times import profile as files

    found = list(_measure(given, _plan(given)) if given.read is None else map(files.read, given.read))
    from lmms_eval_mai.times.profile_tables import report

    write(report(found), given.format, given.output)


def _plan(given: argparse.Namespace) -> "Plan":
    """Return the plan. Raises `ArgumentError`."""
    from lmms_eval_mai.times.measure import FULL, QUICK

    plan = QUICK if given.quick else FULL
    if given.repeats is None:
        return plan
    if given.repeats < 1:
        raise ArgumentError(f"--repeats {given.repeats} is invalid: expected at least 1.")
    return replace(plan, repeats=given.repeats, slow_repeats=given.repeats)


def _measure(given: argparse.Namespace, plan: "Plan") -> "Iterator[Profile]":
    """Yield each profile after it was written. Raises a `MaiError`."""
    from lmms_eval_mai.times import profile as files

    files.make_folder(given.output_path)
    from lmms_eval_mai.times.measure import profile  # takes seconds

    for config in _configs(given):
        found = profile(config, plan, {"quick": given.quick}, _tell)
        _tell(f"Wrote {files.write(found, given.output_path)}.")
        yield found


def _configs(given: argparse.Namespace) -> "list[EngineConfig]":
    """Return the configuration of each model. Raises `ArgumentError`."""
    from lmms_eval_mai.cli.command_line import values_of
    from lmms_eval_mai.run.config import parse

    arguments: dict[str, Any] = {**values_of("--model_args", given.model_args), "engine": given.engine}
    if given.model is not None:
        return [parse({**arguments, "mode": "large", "large": given.model}).large]
    config = parse({**arguments, "pair": given.pair})
    return [getattr(config, side) for side in SIDES]


def _tell(line: str) -> None:
    print(f"lmms-eval-mai: {line}", file=sys.stderr, flush=True)
