"""Writes a report for the terminal, as Markdown, CSV, LaTeX or JSON."""

import itertools
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from lmms_eval_mai.analysis.report import Cell, Column, Estimate, Report, Table

WIDTH, WIDEST = 80, 100
"""Columns of a terminal that notes fit into, and tables where possible."""


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


def texts(table: Table, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the cells as people read them. `names`: name of a method -> its short name."""
    rows = [[text(cell, column, names) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    return pd.DataFrame(rows, columns=[column.name for column in table.columns])


def text(cell: Cell, column: Column[Any], names: Mapping[str, str] | None = None) -> str:
    """Return a cell as people read it: an estimate with its interval in brackets, or with the paper's number; an empty
    text for None."""
    if cell is None or isinstance(cell, str):
        return (names or {}).get(cell or "", cell or "")
    if isinstance(cell, Estimate):
        own = f"{cell.value:.{column.digits}f}" if column.kind == "brief" else cell.shown(column.digits)
        return own if cell.paper is None else f"{own} [{cell.paper:g}]"
    if column.kind == "p":
        return "< 0.001" if cell < 0.001 else f"{cell:.3f}"
    return f"{cell:,}" if column.kind == "count" else f"{cell:.{column.digits}f}"


def terminal(report: Report) -> str:
    """Return the report for a terminal. Rows about one benchmark, or one cascade, stand below a line that names it."""
    parts = ["\n".join([table.title, *_parts(table, report.names), *_wrapped(table.notes)]) for table in report.tables]
    return "\n\n".join([*parts, *filter(None, ("\n".join(_wrapped((*report.explanations, *report.gaps))),))]) + "\n"


def _parts(table: Table, names: Mapping[str, str]) -> list[str]:
    """Return the lines of a table. If it is too wide, its brief columns, such as the exits, stand below the others, or
    else its last columns."""
    lines, every = _lines(table, names), range(len(table.columns))
    own = every[table.names :]
    if max(map(len, lines)) <= WIDEST or len(own) < 2:
        return lines
    below = [number for number in own if table.columns[number].kind == "brief"]
    if not below or len(own) - len(below) < 2:
        end = len(every) - 1
        while end > table.names + 1 and max(map(len, _lines(table.at(range(end)), names))) > WIDEST:
            end -= 1
        below = [*every[end:]]
    main = table.at([number for number in every if number not in below])
    rest = table.at([*every[: table.names], *below])
    return [*_parts(main, names), "", *_parts(rest, names)]


def _lines(table: Table, names: Mapping[str, str]) -> list[str]:
    """Return the lines of a table: the heading, and the rows by their first names."""
    shown, groups = texts(table, names), max(table.names - 1, 0)
    rows = shown.iloc[:, groups:].values.tolist()
    printed = lines_of([column.title for column in table.columns[groups:]], rows, names=table.names - groups)
    lines, printed = printed[: -len(rows)], printed[-len(rows) :]
    grouped = [", ".join(filter(None, row)) for row in shown.iloc[:, :groups].itertuples(index=False)]
    for name, group in itertools.groupby(zip(grouped, printed, strict=True), key=lambda pair: pair[0]):
        lines += [name] * bool(name) + [line for _, line in group]
    return lines


def _wrapped(sentences: tuple[str, ...]) -> list[str]:
    return [line for sentence in sentences for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")]


def markdown(report: Report) -> str:
    """Return the report for a document."""
    parts = [f"## {table.title}\n\n{_markdown_table(table, report.names)}" for table in report.tables]
    if sentences := (*report.explanations, *report.gaps):
        parts.append(_bullets(sentences))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table, names: Mapping[str, str]) -> str:
    align = tuple("left" if column.kind == "text" else "right" for column in table.columns)
    cells = texts(table, names).replace(r"\|", r"\\|", regex=True)
    shown = cells.to_markdown(index=False, disable_numparse=True, colalign=align)
    return f"{shown}\n" + (f"\n{_bullets(table.notes)}" if table.notes else "")


def _bullets(sentences: tuple[str, ...]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def csv(report: Report) -> str:
    """Return the data of all tables in one: the columns are those of all tables."""
    frames = [frame(table).assign(table=table.key) for table in report.tables]
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"table": []})
    ordered = rows[["table", *(name for name in rows if name != "table")]]
    return str(ordered.to_csv(index=False, lineterminator="\n"))


def latex(report: Report) -> str:
    """Return the tables for a paper (booktabs)."""
    shown = []
    for table in report.tables:
        align = "".join("l" if column.kind == "text" else "r" for column in table.columns)
        cells = texts(table, report.names)
        title = re.sub(r"([%&_#$])", r"\\\1", table.title)  # pandas escapes the cells only
        shown.append(cells.to_latex(index=False, escape=True, column_format=align, caption=title, label=table.key))
    return "\n".join(shown)


def as_json(report: Report) -> str:
    """Return the whole report: tables with their data, and what is missing."""
    tables = {
        table.key: {"title": table.title, "notes": table.notes, "rows": _records(frame(table))}
        for table in report.tables
    }
    return json.dumps({"tables": tables, "gaps": report.gaps}, ensure_ascii=False, indent=1) + "\n"


def _records(data: pd.DataFrame) -> object:
    return json.loads(data.to_json(orient="records", double_precision=15))


FORMATS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": csv,
    "latex": latex,
    "json": as_json,
}
"""Value of `--format` -> its function."""


def lines_of(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """Return a table as lines of text: headings, which may have several lines, and rows. The first columns, `names` of
    them, are aligned to the left."""
    head = list(itertools.zip_longest(*(reversed(heading.split("\n")) for heading in headings), fillvalue=""))[::-1]
    widths = [max(map(len, cells)) for cells in zip(*head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(w) if n < names else cell.rjust(w) for n, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(["", *padded]).rstrip()

    return [line(cells) for cells in (*head, *rows)]
