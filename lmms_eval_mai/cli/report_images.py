"""The images of the documents of finished runs, for `lmms-eval-mai report --images`. lmms-eval loads the data sets."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmms_eval_mai.cli.document import load_task
from lmms_eval_mai.cli.findings import error_text
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.sample_data import effects, sample_runs
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.read import Run


def load_images(evidence: Evidence) -> Images:
    """Return thumbnails of the documents of all runs with samples. A benchmark that lacks some has a sentence."""
    _be_quiet()
    images = Images()
    runs = sample_runs(evidence)
    for benchmark in dict.fromkeys(run.benchmark for run in runs):
        of_benchmark = [run for run in runs if run.benchmark == benchmark]
        numbers = wanted(evidence, of_benchmark)
        try:
            added = _add(images, of_benchmark[0], numbers)
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


def _be_quiet() -> None:
    """Show neither lmms-eval's log nor the progress of loading data sets."""
    import datasets
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{message}")
    datasets.disable_progress_bars()


def _add(images: Images, run: Run, numbers: Sequence[int]) -> int:
    """Add the images of the documents until the budget is used. Returns the number of documents. Raises
    `ArgumentError`."""
    added = 0
    for number, found in _images(run, numbers):
        if not images.add(run.benchmark, number, found):
            break
        added += 1
    return added


def _images(run: Run, numbers: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the images of each document. Raises `ArgumentError` if the data set is not that of the run."""
    task = load_task(run.task, {}, _include_path(run.file))
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


def _include_path(results: Path) -> str | None:
    """Return the folder of the command's own task files, if it had one."""
    config = json.loads(results.read_text(encoding="utf-8")).get("config") or {}
    found = (config.get("resolved_cli_args") or {}).get("include_path")
    return found if isinstance(found, str) else None
