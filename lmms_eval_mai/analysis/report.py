"""A report as plain data: tables of named columns, whose cells are texts, numbers or estimates. It is written for the
terminal, as Markdown, CSV, LaTeX or JSON."""

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import pandas as pd
from tabulate import tabulate

from lmms_eval_mai.analysis.intervals import Estimate

WIDTH = 80
"""The least columns of a terminal."""


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
        return _in_one_line(self.title)


def _in_one_line(title: str) -> str:
    return title.replace("_\n", "_").replace("\n", " ")


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
    sentences: tuple[str, ...] = ()
    """What the tables say, in words (`tables/verdict.py`). They stand above the tables."""

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


def title(table: Table) -> str:
    """Return the title, with the values of the columns that `texts` leaves out."""
    cells = [(table.columns[number], text(table.rows[0][number], table.columns[number])) for number in in_title(table)]
    texts = [cell if column.type == "text" else f"{column.name} = {cell or 'not known'}" for column, cell in cells]
    return f"{table.title} ({', '.join(texts)})" if texts else table.title


def texts(table: Table, is_brief: bool = False) -> pd.DataFrame:
    """Return the cells as people read them: without the columns in the title, and without a name that the row above has
    too. `is_brief`: without intervals."""
    left_out = in_title(table)
    last = max((number for number in names(table) if number not in left_out), default=0)
    rows = []
    for row, above in zip(table.rows, [None, *table.rows], strict=False):
        same = 0
        while above and same < last and row[same] == above[same]:
            same += 1
        cells = [text(cell, column, is_brief) for cell, column in zip(row, table.columns, strict=True)]
        rows.append([cell * (number >= same) for number, cell in enumerate(cells) if number not in left_out])
    kept = [column.title for number, column in enumerate(table.columns) if number not in left_out]
    return pd.DataFrame(rows, columns=kept)


def names(table: Table) -> list[int]:
    """Return the columns that name a row."""
    return [number for number, column in enumerate(table.columns) if column.type == "text"]


def in_title(table: Table) -> list[int]:
    """Return the columns that have one value in all of several rows. If all names are such, the last one stays."""
    numbers = range(len(table.columns))
    same = [number for number in numbers if len(table.rows) > 1 and len({row[number] for row in table.rows}) == 1]
    return same if {*names(table)} - {*same} else [number for number in same if number not in names(table)[-1:]]


def text(cell: Cell, column: Column[Any], is_brief: bool = False) -> str:
    """Return a cell as people read it: an estimate with its interval, and with the paper's number; an empty text for
    None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, Estimate):
        is_brief = is_brief or column.type == "brief"
        shown = f"{cell.value:.{column.digits}f}" if is_brief else cell.shown(column.digits)
        return shown if cell.paper is None else f"{shown} [{cell.paper:g}]"
    if column.type == "p":
        return "<0.001" if cell < 0.001 else f"{cell:.3f}"
    return f"{cell:,}" if column.type == "count" else f"{cell:.{column.digits}f}"


def terminal(report: Report) -> str:
    width = max(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)
    parts = ["\n".join(map(_wrapped, report.sentences))] if report.sentences else []
    for table in report.tables:
        shown = [f"{_wrapped(title(part))}\n{_fitting(part, width)}" for part in _parts(table, width)]
        parts.append("\n".join(["\n\n".join(shown), *map(_wrapped, table.notes)]))
    if sentences := (*report.explanations, *report.gaps):
        parts.append("\n".join(map(_wrapped, sentences)))
    return "\n\n".join(parts) + "\n"


def _parts(table: Table, width: int) -> list[Table]:
    """Return one table for each benchmark, which is the first name of a row, if the whole table is too wide."""
    benchmarks = dict.fromkeys(row[0] for row in table.rows)
    if _width(_fitting(table, 10**6)) <= width or len(benchmarks) == len(table.rows) or len(names(table)) < 2:
        return [table]
    return [replace(table, rows=tuple(row for row in table.rows if row[0] == name)) for name in benchmarks]


def _width(lines: str) -> int:
    return max(map(len, lines.splitlines()))


def _fitting(table: Table, width: int) -> str:
    """Return the lines of a table, in the first of these ways that fits: with intervals or without them, with long
    names in several lines, with a column for each row."""
    # tabulate pads headings, so they are the first row.
    full, brief = ([[*one.columns], *one.values.tolist()] for one in (texts(table), texts(table, is_brief=True)))
    turned = [[[_in_one_line(title), *cells] for title, *cells in zip(*rows, strict=True)] for rows in (full, brief)]
    sides = _aligned(table)
    ways = [
        *(_lines(full, sides, name_width) for name_width in (WIDTH, 20)),
        *(_lines(brief, sides, name_width) for name_width in (WIDTH, 20, 16)),
        *(_lines(rows, ["left", *["right"] * len(table.rows)]) for rows in turned),
    ]
    return next((lines for lines in ways if _width(lines) <= width), min(ways, key=_width))


def _lines(rows: Sequence[Sequence[str]], sides: Sequence[str], name_width: int = WIDTH) -> str:
    wrapped = [
        [textwrap.fill(cell, name_width, break_long_words=False) if side == "left" else cell for cell, side in cells]
        for cells in (zip(row, sides, strict=True) for row in rows)
    ]
    return str(tabulate(wrapped, tablefmt="plain", disable_numparse=True, colalign=sides))


def _aligned(table: Table) -> list[str]:
    kept = [column for number, column in enumerate(table.columns) if number not in in_title(table)]
    return ["left" if column.type == "text" else "right" for column in kept]


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, subsequent_indent="  ")


def markdown(report: Report) -> str:
    parts = [*report.sentences, *(f"## {title(table)}\n\n{_markdown_table(table)}" for table in report.tables)]
    if sentences := (*report.explanations, *report.gaps):
        parts.append(_bullets(sentences))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    cells = texts(table).replace(r"\|", r"\\|", regex=True).rename(columns=_in_one_line)
    shown = cells.to_markdown(index=False, disable_numparse=True, colalign=_aligned(table))
    return f"{shown}\n" + (f"\n{_bullets(table.notes)}" if table.notes else "")


def _bullets(sentences: tuple[str, ...]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def csv(report: Report) -> str:
    """Return the data of all tables in one: the columns are those of all tables."""
    rows = pd.concat([frame(table).assign(table=table.key) for table in report.tables])
    return str(rows.set_index("table").to_csv(lineterminator="\n"))


def latex(report: Report) -> str:
    shown = [f"{_escaped(sentence)}\n" for sentence in report.sentences]
    for table in report.tables:
        align, caption = "".join(side[0] for side in _aligned(table)), _escaped(title(table))
        cells = texts(table).rename(columns=_in_one_line)
        shown.append(cells.to_latex(index=False, escape=True, column_format=align, caption=caption, label=table.key))
    return "\n".join(shown)


def _escaped(sentence: str) -> str:  # pandas escapes the cells only
    return re.sub(r"([%&_#$])", r"\\\1", sentence)


def as_json(report: Report) -> str:
    """Return the whole report: sentences, tables with their data, and what is missing."""
    tables = {}
    for table in report.tables:
        rows = json.loads(frame(table).to_json(orient="records", double_precision=15))
        tables[table.key] = {"title": table.title, "notes": table.notes, "rows": rows}
    return (
        json.dumps({"sentences": report.sentences, "tables": tables, "gaps": report.gaps}, ensure_ascii=False, indent=1)
        + "\n"
    )


FORMATS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": csv,
    "latex": latex,
    "json": as_json,
}
"""Value of `--format` -> its function."""
