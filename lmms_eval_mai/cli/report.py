"""Read the output folders of lmms-eval, and print tables of their runs.

Print four tables that compare the runs: all methods, cascades against each other one, agreement, harm and rescue.
--tables adds the paper's. A sentence tells each thing that is missing. Runs need --output_path and --log_samples.
Nothing else is read, so the runs may be from another machine; only --images needs the data sets.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lmms_eval_mai.cli.terminal import log_warnings_only, names_of, tell
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method import files
from lmms_eval_mai.method.thresholds import DEFAULT
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.reports import build, rules, seconds
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.formats import FORMATS
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.samples import shown_runs
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.runs import Runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    parser.add_argument(
        "--tables",
        default="",
        metavar="NAMES",
        help="more tables, separated by commas: numbers of the paper's tables, paper (all of them), rules (other "
        "methods and thresholds), or all",
    )
    parser.add_argument(
        "--method",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="what this method would have done with the calls of these runs: a name, or a YAML file (docs/methods.md)",
    )
    parser.add_argument("--min_confidence", type=float, metavar="P", help="the threshold of --method")
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="default: terminal")
    parser.add_argument(
        "--profile", metavar="FILE", help="add Table 11 with the times of a file of experiments/latency"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with figures, tables and all samples")
    parser.add_argument(
        "--images",
        action="store_true",
        help="with --html: add small images of the documents, which loads the data sets",
    )


def main(given: argparse.Namespace) -> None:
    """Print the report, and write the page. Raises a `MaiError`."""
    if given.html is not None:
        page.check_installed()
    elif given.images:
        raise ArgumentError("--images has no effect without --html: give --html FILE too.")
    tables = names_of(given.tables)
    if unknown := [name for name in tables if name not in build.CHOICES]:
        raise ArgumentError(f"--tables {unknown[0]} is invalid: expected some of {', '.join(build.CHOICES)}.")
    profile = None if given.profile is None else seconds.read(given.profile)
    tables += [build.TABLE_11] * (profile is not None)
    methods = [files.load(one) for one in given.method]
    if given.min_confidence is not None and not any(method.needs_threshold for method in methods):
        raise ArgumentError("--min_confidence has no effect without a --method that needs it, such as mai_confidence.")
    if given.min_confidence is not None and not 0 < given.min_confidence <= 1:
        raise ArgumentError(f"--min_confidence {given.min_confidence:g} must be above 0 and at most 1.")
    runs = build.read(given.folders)
    threshold = DEFAULT if given.min_confidence is None else given.min_confidence
    runs.gaps += rules.add_replays(runs, methods, threshold)
    found = build.of_runs(runs, tables, profile)
    print(FORMATS[given.format](found), end="")
    if given.format in ("csv", "latex"):  # the other formats end with them
        for gap in found.gaps:
            tell(gap)
    if given.html is not None:
        images = load_images(runs) if given.images else Images()
        page.write(given.html, found, runs, images)
        for sentence in (f"Wrote the page to {given.html}.", *images.gaps):
            tell(sentence)


# --- images -----------------------------------------------------------------------------------------------


def load_images(runs: Runs) -> Images:
    """Return thumbnails of the documents of all runs with samples. A benchmark that lacks some has a sentence."""
    from datasets import disable_progress_bars  # takes seconds

    log_warnings_only()
    disable_progress_bars()
    images = Images()
    shown = shown_runs(runs)
    for benchmark in dict.fromkeys(run.benchmark for run in shown):
        of_benchmark = [run for run in shown if run.benchmark == benchmark]
        numbers = wanted(of_benchmark)
        added = 0
        try:
            for number, found in _images(of_benchmark[0], numbers):
                if not images.add(benchmark, number, found):
                    break  # the budget is used
                added += 1
        except ArgumentError as error:
            images.gaps.append(f"{benchmark_name(benchmark)} has no images: {error}")
        else:
            if added < len(numbers):
                images.gaps.append(
                    f"{benchmark_name(benchmark)}: {added} of {len(numbers)} documents have their images in the page, "
                    "because all images must be small enough for one file."
                )
    return images


def wanted(of_benchmark: Sequence[Run]) -> list[int]:
    """Return the documents of the runs of a benchmark, those first that a transfer answers: a reader opens them
    first."""
    samples = pd.concat([run.samples.exit for run in of_benchmark])
    return list(dict.fromkeys(samples.sort_values(key=lambda exit: exit != "transfer", kind="stable").index))


def _images(run: Run, numbers: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the images of each document. Raises `ArgumentError` if the data set is not that of the run."""
    from lmms_eval_mai.harness.documents import load_task, task_manager  # only images need them

    command = json.loads(run.file.read_text(encoding="utf-8")).get("config") or {}
    own_tasks = (command.get("resolved_cli_args") or {}).get("include_path")
    task = load_task(run.task, task_manager([run.task], own_tasks))
    targets = run.samples.target[~run.samples.index.duplicated()]
    try:
        documents, texts = task.eval_docs, task.eval_docs_no_media
        for number in numbers:
            if str(task.doc_to_target(texts[number])) != targets[number]:
                raise ArgumentError(f"document {number} of task {run.task} has another gold answer than in the run.")
            yield number, [image for image in task.doc_to_visual(documents[number]) if hasattr(image, "tobytes")]
    except ArgumentError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise ArgumentError(f"task {run.task} cannot give them ({error_text(error).rstrip('.')}).") from error
