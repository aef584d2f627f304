"""`lmms-eval-mai profile`: the times of models on this machine (Tables 1 to 4, Figure 1 (a)), and of batches."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.report import add_output_arguments, write
from lmms_eval_mai.cli.terminal import check_at_least_one, log_to_terminal, tell, values_of
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.times import profile as files
from lmms_eval_mai.times.measure import FULL, QUICK, profile
from lmms_eval_mai.times.profile import Profile
from lmms_eval_mai.times.profile_tables import report

ENGINES = ("vllm", "transformers")
"""Engines that have a tokenizer and report image tokens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="MODEL", help="measure this checkpoint: a path or a name on the hub")
    source.add_argument("--pair", metavar="PAIR", help="measure both models of a named pair, and compare them")
    source.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="print the tables of earlier profiles")
    parser.add_argument("--engine", choices=ENGINES, default="vllm", help="default: vllm")
    parser.add_argument("--model_args", default="", help="more engine arguments (format as in lmms-eval)")
    parser.add_argument("--output_path", type=Path, default=Path(), metavar="DIR", help="the folder of the profiles")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cells: minutes on a CPU with pair demo")
    parser.add_argument("--repeats", type=int, metavar="N", help="measure each cell N times")
    add_output_arguments(parser)


AFTER_INTERRUPT = "Profiles that are complete are kept."


def main(given: argparse.Namespace) -> None:
    """Measure or read profiles, and print their tables. Raises a `MaiError`."""
    log_to_terminal()
    found = list(_measure(given) if given.read is None else map(files.read, given.read))
    write(report(found), given.format, given.output)


def _measure(given: argparse.Namespace) -> Iterator[Profile]:
    """Yield each profile after it was written. Raises a `MaiError`."""
    check_at_least_one(given, "repeats")
    plan = QUICK if given.quick else FULL
    if given.repeats is not None:
        plan = replace(plan, repeats=given.repeats, slow_repeats=given.repeats)
    files.make_folder(given.output_path)
    arguments: dict[str, Any] = {**values_of("--model_args", given.model_args), "engine": given.engine}
    if given.model is not None:
        configs = [parse({**arguments, "mode": "large", "large": given.model}).large]
    else:
        pair = parse({**arguments, "pair": given.pair})
        configs = [pair.small, pair.large]
    for config in configs:
        found = profile(config, plan, {"quick": given.quick}, tell)
        tell(f"Wrote {files.write(found, given.output_path)}.")
        yield found
