"""Writes a report as Markdown, CSV, LaTeX or JSON."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from pytablewriter import MarkdownTableWriter
from pytablewriter.style import Style

from lmms_eval_mai.reports.paper_numbers import load
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Of, Report, RunSummary, Table
from lmms_eval_mai.reports.report import table as make_table

CSV_COLUMNS = ("table", "row", "column", "value", "low", "high", "standard_error", "n", "paper", "difference", "source")
NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"} | {char: rf"\text{name}{{}}" for char, name in NAMED.items()}
)


def markdown(report: Report) -> str:
    """Return the report for people: claims, tables, differences from the paper, and gaps."""
    parts = [_bullets(report.claims)] if report.claims else []
    for table in report.tables:
        parts.append(f"## {table.title}\n\n{markdown_table(table)}")
        if (compared := against_paper(table)) is not None:
            parts.append(f"### {compared.title}\n\n{markdown_table(compared)}")
    if report.runs:
        parts.append("## Runs\n\n" + markdown_table(runs_table(report)))
    if report.gaps:
        parts.append("## What is missing, and doubts about the input\n\n" + _bullets(report.gaps))
    return "\n\n".join(parts) + "\n"


def latex(report: Report) -> str:
    """Return the tables for a paper (booktabs), with their intervals."""
    tables = [shown for table in report.tables for shown in (table, against_paper(table)) if shown is not None]
    return "\n".join(_latex_table(table) for table in tables)


def tidy_csv(report: Report) -> str:
    """Return one line for each cell of each table, with its interval and the paper's number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in report.tables:
        for row in table.rows:
            for column, cell in zip(table.columns[table.names :], row[table.names :], strict=True):
                if cell is not None:
                    value, more = getattr(cell, "value", cell), [getattr(cell, name, None) for name in CSV_COLUMNS[4:]]
                    writer.writerow([table.key, table.label(row), column.title, value, *more])
    return text.getvalue()


def as_json(report: Report) -> str:
    """Return the whole report, with the data of the figures."""
    return json.dumps(plain(report), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a report, or a part of it, as lists and dictionaries. An `Estimate` has its difference from the paper."""
    if isinstance(value, Estimate):
        return dataclasses.asdict(value) | {"difference": value.difference}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


FORMATS: dict[str, Callable[[Report], str]] = {"markdown": markdown, "csv": tidy_csv, "latex": latex, "json": as_json}
"""Value of `--format` -> its function."""


def against_paper(table: Table) -> Table | None:
    """Return the differences of a table from the paper's. None if the paper has none of its numbers."""
    columns: list[Of[tuple[str, Column, Estimate]]] = [
        Of("row", "text", 0, lambda cell: cell[0]),
        Of("column", "text", 0, lambda cell: cell[1].title),
        Of("n", "count", 0, lambda cell: cell[2].n),
        Of("here", "number", 2, lambda cell: cell[2].value),
        Of("paper", "number", 2, lambda cell: cell[2].paper),
        Of("difference", "number", 2, lambda cell: cell[2].difference),
        Of("documents that differ", "count", 0, lambda cell: _must_differ(*cell)),
    ]
    notes = (
        "Difference: here minus the paper's number. Both are about the same documents if n is that of the paper, so "
        "there is no sampling error between them. Documents that differ: at least so many have another score or exit "
        "than in the paper; for F1 (POPE) about so many.",
    )
    title = f"{table.title}: difference from the paper"
    return next(make_table(f"{table.key}-paper", title, columns, table.compared(), notes), None)


def _must_differ(row: str, column: Column, estimate: Estimate) -> int | None:
    """Return how many documents must differ for a difference in percent, beyond the rounding of the paper's number.
    None: the number is not in percent, or about other documents than the paper's."""
    expected = {one["name"]: one["documents"] for one in load()["benchmarks"].values()}.get(row.partition(",")[0])
    if column.kind != "percent" or estimate.difference is None or estimate.n != expected:
        return None
    digits = len(str(estimate.paper).partition(".")[2])
    beyond = max(0.0, abs(estimate.difference) - 0.5 * 10.0**-digits)
    return math.ceil(beyond / 100 * estimate.n - 1e-6)


def runs_table(report: Report) -> Table:
    columns: list[Of[RunSummary]] = [
        Of("benchmark", "text", 0, lambda run: run.benchmark),
        Of("method", "text", 0, lambda run: run.method),
        Of("documents", "count", 0, lambda run: run.documents),
        Of("wall s", "number", 1, lambda run: run.wall_s),
        Of("used", "text", 0, lambda run: "yes" if run.used else "no"),
        Of("file", "text", 0, lambda run: run.file),
    ]
    return next(make_table("runs", "Runs", columns, report.runs), Table("runs", "Runs", (), ()))


def markdown_table(table: Table) -> str:
    """Return a table and its notes."""
    writer = MarkdownTableWriter()
    writer.headers = [column.title for column in table.columns]
    writer.value_matrix = [_texts(table, row) for row in table.rows]
    writer.type_hints = ["str"] * len(table.columns)
    writer.column_styles = [Style(align="left" if column.kind == "text" else "right") for column in table.columns]
    notes = f"\n{_bullets(table.notes)}" if table.notes else ""
    return str(writer.dumps()).rstrip("\n") + "\n" + notes


def _latex_table(table: Table) -> str:
    alignment = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    lines = [
        rf"\begin{{table}}% {table.key}",
        rf"\caption{{{table.title.translate(LATEX)}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(column.title.translate(LATEX) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(cell.translate(LATEX) for cell in _texts(table, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par {note.translate(LATEX)}" for note in table.notes),
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _texts(table: Table, row: Sequence[Cell]) -> list[str]:
    return [text(cell, column) for column, cell in zip(table.columns, row, strict=True)]


def text(cell: Cell, column: Column) -> str:
    """Return a cell as people read it: an estimate with its interval in brackets, an empty text for None."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, Estimate):
        return cell.shown(column.digits)
    if column.kind == "p":
        return p_value(cell)
    return str(cell) if column.kind == "count" else f"{cell:.{column.digits}f}"


def p_value(p: float) -> str:
    """Return a p-value as people read it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)
