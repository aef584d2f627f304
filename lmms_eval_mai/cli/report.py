"""`lmms-eval-mai report`: the paper's tables, and more, from the output folders of lmms-eval.

With `--html` also a page, and with `--images` small images of the documents in it. Only those need the data sets.
"""

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.terminal import log_warnings_only, tell
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.documents import load_task, task_manager
from lmms_eval_mai.redaction import error_text
from lmms_eval_mai.reports import build, seconds
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.formats import FORMATS
from lmms_eval_mai.reports.page import page
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.sample_data import effects, sample_runs
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run
from lmms_eval_mai.reports.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="an --output_path of lmms-eval")
    add_output_arguments(parser)
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        help="add the seconds of each method by Eq. 27: paper, or a file of experiments/latency",
    )
    add_page_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--format` and `--output`, which `write` takes."""
    parser.add_argument("--format", choices=FORMATS, default="markdown", help="default: markdown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")


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
        page.check_installed()
    elif given.images:
        raise ArgumentError("--images has no effect without --html: give --html FILE too.")


def main(given: argparse.Namespace) -> None:
    """Print or write the report, and write the page. Raises a `MaiError`."""
    check_page_arguments(given)
    profile = seconds.read(given.profile or seconds.PAPER)
    evidence = build.evidence(given.folders, profile.of_run if given.profile else None)
    found = build.of_evidence(evidence, [functools.partial(seconds.table_11, profile=profile)])
    write(found, given.format, given.output)
    if given.html is not None:
        write_page(given.html, found, evidence, given.images)


def write(found: Report, format: str, output: Path | None) -> None:
    """Print a report, or write it to a file. Raises `ArgumentError`."""
    text = FORMATS[format](found)
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
            tell(gap)


def write_page(file: Path, found: Report, evidence: Evidence, with_images: bool) -> None:
    """Write the page of a report, and print a sentence for each benchmark without images. Raises `ArgumentError`."""
    images = load_images(evidence) if with_images else None
    page.write(file, found, evidence, images)
    print(f"\nWrote the page to {file}.")
    for gap in images.gaps if images is not None else ():
        tell(gap)


# --- images -----------------------------------------------------------------------------------------------


def load_images(evidence: Evidence) -> Images:
    """Return thumbnails of the documents of all runs with samples. A benchmark that lacks some has a sentence."""
    from datasets import disable_progress_bars  # takes seconds

    log_warnings_only()
    disable_progress_bars()
    images = Images()
    runs = sample_runs(evidence)
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        of_benchmark = [run for run in runs if run.benchmark == benchmark]
        numbers = wanted(evidence, of_benchmark)
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


def wanted(evidence: Evidence, runs: Sequence[Run]) -> list[int]:
    """Return the documents of the runs of a benchmark, those first that a reader opens first: harm and rescue, then the
    other transfers of the cascades, then all others."""
    cascades = [run for run in runs if run.method.mode == "cascade"]
    changed = [doc_id for run in cascades for doc_id in sorted(effects(evidence, run))]
    transferred = [doc_id for run in cascades for doc_id in run.samples.index[run.samples.exit == "transfer"]]
    return list(dict.fromkeys([*changed, *transferred, *(doc_id for run in runs for doc_id in run.samples.index)]))


def _images(run: Run, numbers: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the images of each document. Raises `ArgumentError` if the data set is not that of the run."""
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
