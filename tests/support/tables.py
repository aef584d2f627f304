"""Cells of a report's tables by the names of their row and column."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lmms_eval_mai.analysis.report import Report, Table
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import build


def report(folders: Sequence[Path], tables: Collection[str] = ("all",)) -> Report:
    return build.report(Runs.read(folders), tables)


def rows_of(table: Table) -> list[dict[str, Any]]:
    """Return all rows, each by column."""
    return [{column.name: cell for column, cell in zip(table.columns, row, strict=True)} for row in table.rows]


def row_of(table: Table, *names: str) -> dict[str, Any]:
    """Return the row whose first cells are the names, by column."""
    (row,) = [row for row in rows_of(table) if tuple(row.values())[: len(names)] == names]
    return row
