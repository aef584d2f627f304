"""Medians and ratios of all rows: the printed table, and the line of JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytablewriter import MarkdownTableWriter, String

from lmms_eval_mai.bench.measure import Measured, Result, shown
from lmms_eval_mai.bench.rows import ROWS, Level

HEADERS = (
    "Row",
    "Open documents",
    "Documents",
    "Seconds",
    "All runs",
    "Seconds per document",
    "Reference / row",
    "With starts, s",
    "Accepted drafts",
)


@dataclass(frozen=True)
class Line:
    """All runs of one row at one level."""

    row: str
    level: Level
    runs: tuple[Measured, ...]
    starts_s: float | None
    """Median seconds of the starts of its engines, one after the other. None: no engine of its own."""

    @property
    def seconds(self) -> float:
        """The median wall time."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def with_starts_s(self) -> float:
        """The median wall time with the starts of the engines."""
        whole = [run.whole_s for run in self.runs if run.whole_s is not None]
        return statistics.median(whole) if whole else self.seconds + (self.starts_s or 0.0)

    @property
    def acceptance(self) -> float | None:
        """The accepted share of the drafted tokens. None: no drafts, or not reported."""
        proposed = sum(run.proposed_tokens or 0 for run in self.runs)
        return sum(run.accepted_tokens or 0 for run in self.runs) / proposed if proposed else None


def lines(result: Result) -> list[Line]:
    """Return one line per row and level, in the order of the rows."""
    found: dict[tuple[Level, str], list[Measured]] = {}
    for run in result.runs:
        found.setdefault((run.level, run.row), []).append(run)
    order = {name: number for number, name in enumerate(ROWS)}
    levels = list(dict.fromkeys(level for level, _ in found))
    keys = sorted(found, key=lambda key: (levels.index(key[0]), order[key[1]]))
    return [Line(row, level, tuple(found[level, row]), _starts_s(row, result.start_s)) for level, row in keys]


def reference_ratio(line: Line, all_lines: Sequence[Line]) -> float | None:
    """Return the time of the row's reference divided by that of the row. None: the reference was not measured."""
    name = ROWS[line.row].reference
    reference = next((one for one in all_lines if (one.row, one.level) == (name, line.level)), None)
    return None if reference is None else reference.seconds / line.seconds


def ratios(all_lines: Sequence[Line]) -> dict[str, float]:
    """Return the ratios of the time of two rows at the same level that this measurement is for."""
    by_key = {(line.row, line.level): line for line in all_lines}
    wanted = (
        ("large-r", "mai"),
        ("full-rt", "mai"),
        ("small-r", "mai"),
        ("prototype", "mai"),
        ("staged", "mai"),
        ("mai", "bound"),
        ("hf", "hf-speculative"),
        ("lmms-eval-mai", "lmms-eval-vllm"),
    )
    found = {}
    for (row, level), line in by_key.items():
        for above, below in wanted:
            if row == below and (above, level) in by_key:
                found[f"{above} / {below}, {shown(level)}"] = by_key[above, level].seconds / line.seconds
        prototype = by_key.get(("prototype", level))
        if row == "mai" and prototype is not None:
            ratio = prototype.with_starts_s / line.with_starts_s
            found[f"prototype / mai, both with starts, {shown(level)}"] = ratio
    return found


def table(all_lines: Sequence[Line]) -> str:
    """Return the table as Markdown."""
    writer = MarkdownTableWriter()
    writer.headers = list(HEADERS)
    writer.type_hints = [String] * len(HEADERS)  # numbers would lose their last zeros
    writer.value_matrix = [_cells(line, all_lines) for line in all_lines]
    return str(writer.dumps())


def figures(result: Result, settings: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as plain data, for one line of JSON."""
    all_lines = lines(result)
    return {
        "benchmark": "bench",
        **settings,
        "rows": [_figures(line, all_lines) for line in all_lines],
        "ratios": {name: round(ratio, 3) for name, ratio in ratios(all_lines).items()},
        "start_s": {name: [round(one, 2) for one in seconds] for name, seconds in result.start_s.items()},
        "failed": dict(result.failed),
        "complete": result.complete,
        "machine": dict(machine),
    }


def _cells(line: Line, all_lines: Sequence[Line]) -> list[str]:
    ratio, acceptance = reference_ratio(line, all_lines), line.acceptance
    return [
        ROWS[line.row].title,
        shown(line.level),
        str(line.runs[0].documents),
        f"{line.seconds:.2f}",
        ", ".join(f"{run.seconds:.2f}" for run in line.runs),
        f"{line.seconds / line.runs[0].documents:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{line.with_starts_s:.1f}",
        "" if acceptance is None else f"{acceptance:.1%}",
    ]


def _figures(line: Line, all_lines: Sequence[Line]) -> dict[str, Any]:
    ratio, acceptance, tokens = reference_ratio(line, all_lines), line.acceptance, line.runs[0].output_tokens
    return {
        "row": line.row,
        "open_documents": line.level,
        "documents": line.runs[0].documents,
        "median_s": round(line.seconds, 4),
        "runs_s": [round(run.seconds, 4) for run in line.runs],
        "with_starts_s": round(line.with_starts_s, 2),
        "reference": ROWS[line.row].reference,
        "reference_ratio": None if ratio is None else round(ratio, 3),
        **({} if tokens is None else {"output_tokens": tokens}),
        **({} if acceptance is None else {"acceptance": round(acceptance, 4)}),
    }


def _starts_s(row: str, start_s: Mapping[str, Sequence[float]]) -> float | None:
    own = [statistics.median(start_s[name]) for name in ROWS[row].engines if start_s.get(name)]
    return sum(own) if own else None
