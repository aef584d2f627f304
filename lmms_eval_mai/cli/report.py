"""Read the output folders of lmms-eval, and print tables of their runs.

Print two tables that compare the runs: all methods, and the cascades against each other one. --tables adds the
paper's. A sentence tells each thing that is missing. Runs need --output_path and --log_samples. Nothing else is read,
so the runs may be from another machine; only --images needs the data sets.
"""

import argparse
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import FORMATS
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build, page, seconds
from lmms_eval_mai.analysis.tables.page import Images
from lmms_eval_mai.cli import GONE, log_warnings_only, names_of, tell
from lmms_eval_mai.engines.images import to_rgb
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method import files
from lmms_eval_mai.method.methods import DEFAULT_CONFIDENCE
from lmms_eval_mai.redaction import error_text

SIDE = 384
"""Length of the longer side of an image in the page, in pixels."""
BYTES = 5_000_000
"""Of all images of one benchmark in the page."""


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
        help="write a page with the tables, score over output tokens and all samples",
    )
    parser.add_argument(
        "--images",
        action="store_true",
        help="with --html: add the first image of each document, which loads the data sets",
    )


def main(given: argparse.Namespace) -> None:
    """Print the report, and write the page. Raises a `MaiError`."""
    if given.images and given.html is None:
        raise ArgumentError("--images has no effect without --html: give --html FILE too.")
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
        page.write(given.html, report, runs, load_images(runs) if given.images else {})
        tell(f"Wrote the page to {given.html}.")


# --- images -----------------------------------------------------------------------------------------------


def load_images(runs: Runs) -> Images:
    """Return a small image of the documents of all runs with samples. Tells which benchmarks lack some."""
    from datasets import disable_progress_bars  # takes seconds

    log_warnings_only()
    disable_progress_bars()
    images: dict[str, dict[int, str]] = {}
    by_size = sorted(reversed(page.shown_runs(runs)), key=lambda run: run.documents)
    for benchmark, run in {run.benchmark: run for run in by_size}.items():  # the first with the most documents
        name = benchmark_name(benchmark)
        try:
            images[benchmark] = dict(_thumbnails(run))
        except (ArgumentError, LookupError, TypeError, ValueError, AttributeError, OSError) as error:
            tell(f"{name} has no images in the page: {error_text(error)}")
        else:
            if len(images[benchmark]) < run.documents:
                tell(f"{name}: {len(images[benchmark]):,} of {run.documents:,} documents have an image in the page.")
    return images


def _thumbnails(run: FinishedRun) -> Iterator[tuple[int, str]]:
    """Yield each document with its first image, reduced, as WebP in base64, until `BYTES` are used. Raises
    `ArgumentError` if the data set is not that of the run, and the errors of the task."""
    from lmms_eval_mai.analysis.documents import load_task, task_manager  # only images need them

    command = json.loads(run.file.read_bytes()).get("config") or {}
    own_tasks = (command.get("resolved_cli_args") or {}).get("include_path")
    task = load_task(run.task, task_manager([run.task], own_tasks))
    documents, texts = task.eval_docs, task.eval_docs_no_media
    by_hashes: dict[Any, str] = {}
    size = 0
    # A reader opens the transferred documents first.
    in_order = run.samples.sort_values("exit", key=lambda exit: exit != "transfer", kind="stable")
    for doc_id, target, hashes in in_order[["target", "images"]].itertuples():
        if str(task.doc_to_target(texts[doc_id])) != target:
            raise ArgumentError(f"document {doc_id} of task {run.task} has another gold answer than in the run.")
        key = hashes or doc_id
        if key not in by_hashes:
            images = task.doc_to_visual(documents[doc_id])
            by_hashes[key] = _thumbnail(images[0]) if images else ""
            size += len(by_hashes[key])
        if size > BYTES:
            return
        yield doc_id, by_hashes[key]


def _thumbnail(image: Any) -> str:
    small = to_rgb(image)
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=60)
    return base64.b64encode(file.getvalue()).decode("ascii")
