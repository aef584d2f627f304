"""Loads the images of documents for the page, from the data sets of their tasks."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

from lmms_eval_mai.analysis.documents import load_task, task_manager
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import samples
from lmms_eval_mai.analysis.tables.page import Images
from lmms_eval_mai.engines.images import to_rgb
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import error_text

SIDE = 384
"""Length of the longer side of an image in the page, in pixels."""
BYTES = 5_000_000
"""Of all images of one benchmark in the page."""


def load_images(runs: Runs, tell: Callable[[str], None]) -> Images:
    """Return a small image of the documents of all runs with samples. `tell` gets a sentence for each benchmark that
    lacks some."""
    from datasets import disable_progress_bars  # takes seconds

    disable_progress_bars()
    images: dict[str, dict[int, str]] = {}
    by_size = sorted(reversed(samples.shown_runs(runs)), key=lambda run: run.documents)
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
    command = json.loads(run.file.read_bytes()).get("config") or {}
    user_tasks = (command.get("resolved_cli_args") or {}).get("include_path")
    task = load_task(run.task, task_manager([run.task], user_tasks))
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
