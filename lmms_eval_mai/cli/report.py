"""Read the output folders of lmms-eval, and print tables of their runs.

Print which methods no other one beats in both score and price, and three tables: all methods; how good each one is
where it stops, beside what the others answered there; and the differences. --tables adds the paper's. A sentence tells
each thing that is missing. Runs need --output_path and --log_samples. Nothing else is read, so the runs may be from
another machine; only --images needs the data sets.
"""

import argparse
from pathlib import Path

from lmms_eval_mai.analysis.report import FORMATS
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build, page, seconds, thumbnails
from lmms_eval_mai.cli import GONE, log_warnings_only, names_of, tell
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method import files
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    parser.add_argument(
        "--tables",
        default="",
        metavar="NAMES",
        help="more tables, separated by commas: numbers of the paper's tables, or all (paper is the same)",
    )
    parser.add_argument(
        "--method",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="what this method would have done with the calls of these runs: a name, or a YAML file (docs/methods.md)",
    )
    parser.add_argument(
        "--min_confidence",
        nargs="+",
        type=float,
        default=[],
        metavar="P",
        help="the threshold of --method; several make a row each",
    )
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="default: terminal")
    parser.add_argument(
        "--profile", metavar="FILE", help="add Table 11 with the times of a file of experiments/latency"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with score over price, the tables and all samples",
    )
    parser.add_argument(
        "--images",
        action="store_true",
        help="with --html: add the first image of each document, which loads the data sets",
    )


def main(given: argparse.Namespace) -> None:
    if given.images and given.html is None:
        raise ArgumentError("--images has no effect without --html: give --html FILE too.")
    if str(given.html) == "-":
        raise ArgumentError("--html - is invalid: give the name of a file. Standard output has the tables.")
    tables = names_of(given.tables)
    if unknown := [name for name in tables if name not in build.CHOICES]:
        instead = GONE.get(f"report --tables {unknown[0]}", f"expected some of {', '.join(build.CHOICES)}.")
        raise ArgumentError(f"--tables {unknown[0]} is invalid: {instead}")
    profile = None if given.profile is None else seconds.read(given.profile)
    tables += [build.TABLE_11] * (profile is not None)
    methods = [files.load(one) for one in given.method]
    if given.min_confidence and not any(method.needs_threshold for method in methods):
        raise ArgumentError("--min_confidence has no effect without a --method that needs it, such as mai_confidence.")
    if wrong := [threshold for threshold in given.min_confidence if not 0 < threshold <= 1]:
        raise ArgumentError(f"--min_confidence {wrong[0]:g} must be above 0 and at most 1.")
    runs = Runs.read(given.folders)
    runs.gaps += runs.add_replays(methods, given.min_confidence or [DEFAULT_CONFIDENCE])
    report = build.report(runs, tables, profile)
    print(FORMATS[given.format](report), end="")
    if given.format in ("csv", "latex"):  # the other formats end with them
        for gap in report.gaps:
            tell(gap)
    if given.html is not None:
        if given.images:
            log_warnings_only()
        page.write(given.html, report, runs, thumbnails.load_images(runs, tell) if given.images else {})
        tell(f"Wrote the page to {given.html}.")
