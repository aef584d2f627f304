"""Writes the page: fills the template with the tables as HTML, and with the figures and samples as packed blocks."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.formats import against_paper, plain, runs_table, text
from lmms_eval_mai.reports.more_tables.exits import traced
from lmms_eval_mai.reports.page.blocks import pack, pack_bytes
from lmms_eval_mai.reports.page.headline import headlines
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.occupancy import occupancy
from lmms_eval_mai.reports.page.sample_data import roles, sample_blocks, sample_runs, short_names
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Report, Table
from lmms_eval_mai.run import fingerprint

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "base.js",
    "tables.js",
    "drawing.js",
    "points.js",
    "charts.js",
    "store.js",
    "detail.js",
    "browser.js",
    "main.js",
)
"""The scripts of the page, in the order in which they are joined."""
FIRST_TABLES = ("mai-against-others", "methods", "table-10", "accuracy-by-exit")
"""The tables that answer most questions. The others follow in the order of the report."""


def check_installed() -> None:
    """Raise `MaiError` if jinja2 or plotly is missing, before anything is computed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise MaiError(
            f'The page needs jinja2 and plotly ({error}). Install them: pip install "lmms-eval-mai[report]".'
        ) from None


def write(path: Path, report: Report, evidence: Evidence, images: Images | None = None) -> None:
    """Write the page. Raises `ArgumentError` if the file cannot be written."""
    content = html(report, evidence, images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", errors="replace")  # half a character, which a model may write
    except OSError as error:
        raise ArgumentError(f"--html {path} cannot be written ({error.strerror}).") from None


def html(report: Report, evidence: Evidence, images: Images | None = None) -> str:
    """Return the page. `evidence`: the runs of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    images = images or Images()
    figures = _figures(report, evidence)
    blocks = {"figures": pack(figures), **dict(sample_blocks(evidence))}
    if images.data:
        blocks["images"] = pack(images.packed())
    blocks["plotly"] = _plotly()
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    environment.filters["sort_key"] = sort_key
    environment.globals["against_paper"] = against_paper
    page: str = environment.get_template("page.html.jinja").render(
        headlines=list(headlines(evidence)),
        benchmarks=[(name, benchmark_name(name)) for name in evidence.benchmarks()],
        tables=_ordered(report),
        runs=runs_table(report),
        gaps=[*report.gaps, *images.gaps, *_without_times(figures)],
        blocks=blocks,
        scripts="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS),
        # Scripts need this word. Texts of models cannot contain it, because it is a digest of all of them.
        nonce=hashlib.sha256("".join(blocks.values()).encode()).hexdigest()[:32],
        version=fingerprint.version("lmms-eval-mai"),
    )
    return page


def _figures(report: Report, evidence: Evidence) -> dict[str, Any]:
    """Return all that the figures need."""
    occupied = [(run, occupancy(run)) for run in sample_runs(evidence) if run.ours]
    return {
        "figures": [
            {"kind": one.kind, "benchmark": one.benchmark, "title": one.title, "data": plain(one.data)}
            for one in report.figures
        ],
        "flows": [evidence.name(run.method) for run in traced(evidence)],  # in the order of the figures
        "differences": list(_differences(report)),
        "occupancy": [
            {"benchmark": run.benchmark, "method": evidence.name(run.method), **found}
            for run, found in occupied
            if found is not None
        ],
        "without_times": [
            {"benchmark": run.benchmark, "method": evidence.name(run.method)}
            for run, found in occupied
            if found is None
        ],
        "names": {name: benchmark_name(name) for name in evidence.benchmarks()},
        "roles": roles(evidence),
        "short": short_names(evidence),
    }


def _without_times(figures: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence about the runs that the figure of both engines leaves out, if it has others."""
    names = [f"{one['method']} on {figures['names'][one['benchmark']]}" for one in figures["without_times"]]
    if names and figures["occupancy"]:
        yield (
            f"The figure of both engines leaves out {', '.join(names)}: their calls have no start times, because an "
            "older version made the runs, or other runs made their calls."
        )


def _differences(report: Report) -> Iterator[dict[str, Any]]:
    """Yield the rows of the comparison of each cascade with the other methods."""
    for table in report.tables:
        if table.key == "mai-against-others":
            names = [column.title for column in table.columns]
            for row in table.rows:
                cells = dict(zip(names, row, strict=True))
                yield {name: plain(cells[name]) for name in ("benchmark", "cascade", "against", "n", "p")} | {
                    "difference": plain(cells["difference, points"])
                }


def _ordered(report: Report) -> list[Table]:
    """Return the tables, the most important first."""
    rank = {key: number for number, key in enumerate(FIRST_TABLES)}
    return sorted(report.tables, key=lambda table: rank.get(table.key, len(rank)))


def cell(value: Cell, column: Column) -> dict[str, str]:
    """Return a cell in parts: the number, and its interval. All are texts."""
    shown = text(value, column)
    if isinstance(value, Estimate) and value.low is not None and value.high is not None:
        number, _, interval = shown.partition(" ")
        return {"number": number, "interval": interval.strip("()")}
    return {"number": shown, "interval": ""}


def sort_key(value: Cell) -> str:
    """Return the number of a cell by which a table is sorted. Empty: the text is used, or the cell is empty."""
    if isinstance(value, Estimate):
        return repr(value.value)
    return repr(value) if isinstance(value, int | float) else ""


@functools.cache
def _plotly() -> str:
    """Return plotly's script for browsers as a packed text."""
    from plotly.offline import get_plotlyjs

    return pack_bytes(get_plotlyjs().encode())
