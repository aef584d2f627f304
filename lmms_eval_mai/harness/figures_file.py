"""Writes the figures of a run beside lmms-eval's results: `<time>_mai_cascade.json` for `<time>_results.json`.

lmms-eval writes its results after it has called the model for the last time. So the figures are written when this
process ends, or when it makes the next model object, and only if the results are on the disk then.
"""

import json
from pathlib import Path
from typing import Any

from loguru import logger

from lmms_eval_mai.run.at_exit import at_exit
from lmms_eval_mai.run.figures import FIGURES, RESULTS

_waiting: dict[Path, dict[str, Any]] = {}
"""Results file that lmms-eval will write -> the figures of its run."""


def write_beside(results: Path, figures: dict[str, Any]) -> None:
    """Write the figures beside the results file as soon as lmms-eval has written it."""
    if not _waiting:
        at_exit(write_waiting)
    _waiting[results] = figures


def write_waiting() -> None:
    """Write the figures of all runs whose results are on the disk."""
    for results in [results for results in _waiting if results.exists()]:
        figures = _waiting.pop(results)
        file = results.with_name(results.name.removesuffix(RESULTS) + FIGURES)
        try:
            file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            logger.warning(f"mai_cascade: the figures of the run cannot be written to {file} ({error.strerror}).")
