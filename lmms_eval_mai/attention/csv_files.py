"""Writes numbers as CSV."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per record. The columns are the names in all records, in order of appearance. A value that a
    record does not have, None and nan are empty; other numbers are rounded to 6 significant digits."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_shown(record.get(name)) for name in columns] for record in records)


def _shown(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return value
