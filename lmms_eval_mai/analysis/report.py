"""A report as plain data: tables of named columns, whose cells are texts, numbers or estimates. It is written for the
terminal, as Markdown, CSV, LaTeX or JSON."""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import pandas as pd
from tabulate import tabulate

from lmms_eval_mai.analysis.intervals import Estimate

WIDTH = 100
"""Columns of a terminal that notes fit into."""


Cell = Estimate | float | int | str | None
CellType = Literal["text", "count", "number", "percent", "brief", "p"]
"""text: a name. count: a whole number. number: an `Estimate` or a float. percent: the same, a score or a share of
documents in percent. brief: the same, and people read it without its interval. p: a p-value."""


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table with the function that gives its cell from a row, so that both stand together."""

    title: str
    """May have several lines."""
    type: CellType
    digits: int
    """Decimal places of the printed numbers."""
    cell: Callable[[Row], Cell]

    @property
    def name(self) -> str:
        """The title in one line."""
        return self.title.replace("_\n", "_").replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Table:
    """One table. The first columns name the row."""

    key: str
    """Short name, unique in a report, for example `table-10`."""
    title: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table."""


def table(
    key: str, title: str, columns: Sequence[Column[Row]], rows: Iterable[Row], notes: Sequence[str] = ()
) -> Iterator[Table]:
    """Yield the table of the rows, or nothing if there are no rows. A column without any cell is left out."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    if cells:
        kept = [number for number in range(len(columns)) if any(row[number] is not None for row in cells)]
        headings = tuple(columns[number] for number in kept)
        yield Table(key, title, headings, tuple(tuple(row[number] for number in kept) for row in cells), tuple(notes))


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known about the runs."""

    tables: tuple[Table, ...]
    gaps: tuple[str, ...] = ()
    """One sentence for each thing that could not be made, and for each doubt about the input."""
    legend: tuple[str, ...] = ()
    """What the names of methods leave out."""

    @property
    def explanations(self) -> tuple[str, ...]:
        """The legend, and what brackets mean if a table has a number of the paper."""
        cells = (cell for table in self.tables for row in table.rows for cell in row if isinstance(cell, Estimate))
        has_papers = any(cell.paper is not None for cell in cells)
        return (*self.legend, *["[number] = the paper's number"] * has_papers)

    def table(self, key: str) -> Table:
        return {table.key: table for table in self.tables}[key]


# --- writing ---


def frame(table: Table) -> pd.DataFrame:
    """Return the data of a table, one column for each key: an estimate has its value in the column of its title, and
    more columns whose names end in `_low`, `_high`, `_n` and `_paper`."""
    columns = {}
    for number, column in enumerate(table.columns):
        cells, key = [row[number] for row in table.rows], re.sub(r"\W+", "_", column.name).strip("_").lower()
        columns[key] = [cell.value if isinstance(cell, Estimate) else cell for cell in cells]
        for end in ("low", "high", "n", "paper"):
            values = [getattr(cell, end, None) for cell in cells]
            if any(value is not None for value in values):
                columns[f"{key}_{end}"] = values
    return pd.DataFrame(columns)


def texts(table: Table) -> pd.DataFrame:
    rows = [[text(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    return pd.DataFrame(rows, columns=[column.name for column in table.columns])


def text(cell: Cell, column: Column[Any]) -> str:
    """Return a cell as people read it: an estimate with its interval in brackets, or with the paper's number; an empty
    text for None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, Estimate):
        shown = f"{cell.value:.{column.digits}f}" if column.type == "brief" else cell.shown(column.digits)
        return shown if cell.paper is None else f"{shown} [{cell.paper:g}]"
    if column.type == "p":
        return "< 0.001" if cell < 0.001 else f"{cell:.3f}"
    return f"{cell:,}" if column.type == "count" else f"{cell:.{column.digits}f}"


def terminal(report: Report) -> str:
    parts = []
    for table in report.tables:
        # tabulate pads headings, so they are the first row.
        rows = [[column.title for column in table.columns], *texts(table).values.tolist()]
        lines = tabulate(rows, tablefmt="plain", disable_numparse=True, colalign=_aligned(table))
        parts.append("\n".join([table.title, lines, *map(_wrapped, table.notes)]))
    if sentences := (*report.explanations, *report.gaps):
        parts.append("\n".join(map(_wrapped, sentences)))
    return "\n\n".join(parts) + "\n"


def _aligned(table: Table) -> list[str]:
    return ["left" if column.type == "text" else "right" for column in table.columns]


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, subsequent_indent="  ")


def markdown(report: Report) -> str:
    parts = [f"## {table.title}\n\n{_markdown_table(table)}" for table in report.tables]
    if sentences := (*report.explanations, *report.gaps):
        parts.append(_bullets(sentences))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    cells = texts(table).replace(r"\|", r"\\|", regex=True)
    shown = cells.to_markdown(index=False, disable_numparse=True, colalign=_aligned(table))
    return f"{shown}\n" + (f"\n{_bullets(table.notes)}" if table.notes else "")


def _bullets(sentences: tuple[str, ...]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def csv(report: Report) -> str:
    """Return the data of all tables in one: the columns are those of all tables."""
    rows = pd.concat([frame(table).assign(table=table.key) for table in report.tables])
    return str(rows.set_index("table").to_csv(lineterminator="\n"))


def latex(report: Report) -> str:
    shown = []
    for table in report.tables:
        align = "".join(side[0] for side in _aligned(table))
        title = re.sub(r"([%&_#$])", r"\\\1", table.title)  # pandas escapes the cells only
        cells = texts(table).to_latex(index=False, escape=True, column_format=align, caption=title, label=table.key)
        shown.append(cells)
    return "\n".join(shown)


def as_json(report: Report) -> str:
    """Return the whole report: tables with their data, and what is missing."""
    tables = {}
    for table in report.tables:
        rows = json.loads(frame(table).to_json(orient="records", double_precision=15))
        tables[table.key] = {"title": table.title, "notes": table.notes, "rows": rows}
    return json.dumps({"tables": tables, "gaps": report.gaps}, ensure_ascii=False, indent=1) + "\n"


FORMATS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": csv,
    "latex": latex,
    "json": as_json,
}
"""Value of `--format` -> its function."""
