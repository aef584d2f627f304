"""Reads the tables that `lmms-eval-mai attention` wrote: `table9.csv` and `table16.csv`, beside `settings.json`."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmms_eval_mai.reports.command import identity

SETTINGS = "settings.json"
TABLES = ("table9.csv", "table16.csv")

Record = Mapping[str, str]
"""A line of a CSV file: column -> text. Numbers that are not known are empty."""


@dataclass(frozen=True)
class AttentionOutput:
    """The output of one task."""

    task: str
    small: str
    large: str
    """The models, as runs name them."""
    delta: float
    table9: tuple[Record, ...] = ()
    table16: tuple[Record, ...] = ()


def folders(folder: Path) -> list[Path]:
    """Return the output folders of tasks in a folder and its subfolders."""
    if not folder.is_dir():
        return []
    return sorted(
        {file.parent for file in folder.rglob(SETTINGS) if any((file.parent / one).is_file() for one in TABLES)}
    )


def read(folder: Path) -> AttentionOutput:
    """Read the output of a task. Raises ValueError, LookupError, TypeError or OSError if a file is broken."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    models = {side: identity(str(settings["engines"][side]["model"])) for side in ("small", "large")}
    tables = [_records(folder / name) for name in TABLES]
    return AttentionOutput(str(settings["task"]), models["small"], models["large"], float(settings["delta"]), *tables)


def _records(path: Path) -> tuple[Record, ...]:
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))
