"""`lmms-eval-mai report`: the paper's tables, and more, from the output folders of lmms-eval."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmms_eval_mai.cli.exit_code import exit_code_of
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.reports.report import Report

FORMATS = ("markdown", "csv", "latex", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    parser.add_argument("--format", choices=FORMATS, default="markdown", help="default: markdown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return exit_code_of(lambda: _report(given))


def _report(given: argparse.Namespace) -> None:
    """Print or write the report. Raises a `MaiError`."""
    from lmms_eval_mai.reports.build import report

    write(report(given.folders), given.format, given.output)


def write(found: "Report", format: str, output: Path | None) -> None:
    """Print a report, or write it to a file. Raises `ArgumentError`."""
    from lmms_eval_mai.reports.formats import FORMATS as WRITERS

    text = WRITERS[format](found)
    if output is None:
        print(text, end="")
    else:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"--output {output} cannot be written ({error.strerror}).") from None
        print(f"Wrote {len(found.tables)} tables to {output}.")
    if format != "markdown" or output is not None:  # the Markdown on the terminal ends with them
        for gap in found.gaps:
            print(f"lmms-eval-mai: {gap}", file=sys.stderr)
