"""A report as plain data. The text formats and the page show the same `Report`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, Literal, TypeVar


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number from n documents, with its 95% interval, and the paper's number if the paper has it."""

    value: float
    n: int
    low: float | None = None
    """Lower end of the 95% interval. None: it is not known, because the run has no samples file, or there is only one
    document."""
    high: float | None = None
    standard_error: float | None = None
    paper: float | None = None
    source: str | None = None
    """The place of the paper's number."""

    @property
    def difference(self) -> float | None:
        """The value minus the paper's."""
        return None if self.paper is None else self.value - self.paper

    def shown(self, digits: int = 1, sign: str = "", unit: str = "") -> str:
        """Return the number with its interval in brackets, as people read it. `sign`: "+" for a difference."""
        value = f"{self.value:{sign}.{digits}f}{unit}"
        if self.low is None or self.high is None:
            return value
        return f"{value} ({self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f})"


Cell = Estimate | float | int | str | None
Kind = Literal["text", "count", "number", "percent", "p"]
"""text: a name. count: a whole number. number: an `Estimate` or a float. percent: the same, a score or a share of
documents in percent. p: a p-value."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    kind: Kind = "number"
    digits: int = 1
    """Decimal places of the printed numbers."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. The first columns, of the kind `text`, name the row."""

    key: str
    """Short name, unique in a report, for example `table-10`."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table."""

    @property
    def names(self) -> int:
        """The number of the first columns that name a row."""
        return sum(1 for _ in takewhile(lambda column: column.kind == "text", self.columns))

    def label(self, row: tuple[Cell, ...]) -> str:
        """Return the name of a row."""
        return ", ".join(str(cell) for cell in row[: self.names] if cell is not None)

    def compared(self) -> Iterator[tuple[str, Column, Estimate]]:
        """Return each number that the paper has too, with the name of its row and its column."""
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, Estimate) and cell.paper is not None:
                    yield self.label(row), column, cell


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Of(Generic[Row]):
    """One column of a table with the function that gives its cell from a row, so that both stand together."""

    title: str
    kind: Kind
    digits: int
    cell: Callable[[Row], Cell]


Note = str | tuple[str, str]
"""A sentence below a table. With the name of a benchmark before it, only if a row is about this benchmark."""


def table(
    key: str, title: str, columns: Sequence[Of[Row]], rows: Iterable[Row], notes: Sequence[Note] = ()
) -> Iterator[Table]:
    """Yield the table of the rows, or nothing if there are no rows."""
    cells = tuple(tuple(column.cell(row) for column in columns) for row in rows)
    if cells:
        headings = tuple(Column(one.title, one.kind, one.digits) for one in columns)
        named = {row[0] for row in cells}
        shown = [
            note if isinstance(note, str) else note[1] for note in notes if isinstance(note, str) or note[0] in named
        ]
        yield Table(key, title, headings, cells, tuple(shown))


@dataclass(frozen=True, slots=True)
class Figure:
    """The data of one figure."""

    key: str
    title: str
    kind: Literal["points", "flow", "curve", "reliability"]
    """points: score over cost, one point for each method. flow: documents from exit to exit. curve: score and cost over
    a setting. reliability: right answers over the model's probability."""
    benchmark: str
    data: tuple[dict[str, Any], ...]
    """Plain JSON objects; docs/reports.md describes the fields of each kind."""
    method: str = ""
    """The cascade of the data. Empty, of points: the data name their methods."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run that the report uses, or leaves out."""

    file: str
    task: str
    benchmark: str
    method: str
    model: str
    documents: int
    wall_s: float | None
    used: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known about the runs."""

    claims: tuple[str, ...]
    """One sentence for each cascade: its score, its cost and how it compares."""
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    runs: tuple[RunSummary, ...]
    gaps: tuple[str, ...] = field(default=())
    """One sentence for each thing that could not be made, and for each doubt about the input."""

    def table(self, key: str) -> Table:
        """Return a table. Raises KeyError."""
        return {table.key: table for table in self.tables}[key]
