"""`lmms-eval-mai estimate`: the time of finished runs, computed from profiles (Eq. 27, Table 11)."""

import argparse
from pathlib import Path

from lmms_eval_mai.cli.report import add_output_arguments, write
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.times.estimate import Profiles, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="an --output_path of lmms-eval")
    parser.add_argument(
        "--profile",
        nargs="+",
        default=["paper"],
        metavar="PROFILE",
        help="the paper's profiles of Qwen3-VL 2B, 4B and 8B on an H100 (paper, the default), or files of "
        "lmms-eval-mai profile",
    )
    for side in SIDES:
        parser.add_argument(
            f"--{side}",
            metavar="NAME",
            help=f"time the {side} model's calls with this profile, whatever the model is, e.g. 2B",
        )
    add_output_arguments(parser)


def main(given: argparse.Namespace) -> None:
    """Print or write the estimate. Raises a `MaiError`."""
    names = {side: getattr(given, side) for side in SIDES if getattr(given, side) is not None}
    write(report(given.runs, Profiles.read(given.profile, names)), given.format, given.output)
