"""A report as plain data: tables of named columns, whose cells are texts, numbers or estimates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    paper: float | None = None

    def shown(self, digits: int) -> str:
        """Return the number with its interval in brackets, as people read it."""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


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
