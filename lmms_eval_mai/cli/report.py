"""`lmms-eval-mai report`: the paper's tables, and more, from the output folders of lmms-eval."""

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmms_eval_mai.cli.exit_code import exit_code_of
from lmms_eval_mai.errors import ArgumentError

if TYPE_CHECKING:
    from lmms_eval_mai.reports.evidence import Evidence
    from lmms_eval_mai.reports.report import Report

FORMATS = ("markdown", "csv", "latex", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    parser.add_argument("--format", choices=FORMATS, help="default: markdown; with --html, no tables are printed")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")
    parser.add_argument(
        "--profile",
        nargs="+",
        metavar="PROFILE",
        help="add the seconds of each method by these profiles: files of lmms-eval-mai profile, or paper",
    )
    add_page_arguments(parser)


def add_page_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--html` and `--images`."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with figures, tables and all samples")
    parser.add_argument(
        "--images",
        action="store_true",
        help="with --html: add small images of the documents, which loads the data sets",
    )


def check_page_arguments(given: argparse.Namespace) -> None:
    """Refuse `--html` without its packages, and `--images` without `--html`. Raises `ArgumentError`."""
    if given.html is not None:
        from lmms_eval_mai.reports.page import page

        page.check_installed()
    elif given.images:
        raise ArgumentError("--images has no effect without --html: give --html FILE too.")


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    return exit_code_of(lambda: _report(given))


def _report(given: argparse.Namespace) -> None:
    """Print or write the report, and the page. Raises a `MaiError`."""
    from lmms_eval_mai.reports import build
    from lmms_eval_mai.times.estimate import Profiles, report_tables, seconds_of

    check_page_arguments(given)
    profiles = Profiles.read(given.profile) if given.profile else None
    seconds = functools.partial(seconds_of, profiles=profiles) if profiles else None
    evidence, of_attention = build.evidence(given.folders, seconds)
    found = build.of_evidence(evidence, of_attention, [functools.partial(report_tables, profiles=profiles)])
    if given.html is None:
        write(found, given.format or "markdown", given.output)
        return
    gaps: list[str] = []
    if given.format is not None or given.output is not None:
        write(found, given.format or "markdown", given.output)
    else:
        gaps += found.gaps
    write_page(given.html, found, evidence, given.images, gaps)


def write_page(file: Path, found: "Report", evidence: "Evidence", with_images: bool, gaps: Sequence[str] = ()) -> None:
    """Write the page of a report, and print the sentences `gaps` and those about missing images. Raises
    `ArgumentError`."""
    from lmms_eval_mai.reports.page import page

    images = None
    if with_images:
        from lmms_eval_mai.cli.report_images import load_images  # lmms-eval takes seconds

        images = load_images(evidence)
        gaps = [*gaps, *images.gaps]
    page.write(file, found, evidence, images)
    print(f"Wrote the page to {file}.")
    for gap in gaps:
        print(f"lmms-eval-mai: {gap}", file=sys.stderr)


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
