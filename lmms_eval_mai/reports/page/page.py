"""Writes the page: fills the template with the tables as HTML, and with the figures and samples as packed blocks."""

import hashlib
from pathlib import Path

from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.reports.claims import claims
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.formats import against_paper, runs_table, text
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.sample_data import pack, pack_bytes, sample_blocks
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Cell, Column, Estimate, Report
from lmms_eval_mai.run.totals import version

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("base.js", "tables.js", "figures.js", "store.js", "detail.js", "browser.js", "main.js")
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
    from plotly.offline import get_plotlyjs

    from lmms_eval_mai.reports.page.figures import charts

    images = images or Images()
    blocks = {"charts": pack(list(charts(report, evidence))), **dict(sample_blocks(evidence))}
    if images.data:
        blocks["images"] = pack({"data": images.data, "of": images.of})
    blocks["plotly"] = pack_bytes(get_plotlyjs().encode())
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "sort_key": sort_key}
    environment.globals["against_paper"] = against_paper
    page: str = environment.get_template("page.html.jinja").render(
        claims=list(claims(evidence)),
        benchmarks=[(name, benchmark_name(name)) for name in evidence.benchmarks()],
        tables=sorted(report.tables, key=lambda table: (*FIRST_TABLES, table.key).index(table.key)),
        runs=runs_table(report),
        gaps=[*report.gaps, *images.gaps],
        blocks=blocks,
        scripts="\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS),
        # Scripts need this word. Texts of models cannot contain it, because it is a digest of all of them.
        nonce=hashlib.sha256("".join(blocks.values()).encode()).hexdigest()[:32],
        version=version("lmms-eval-mai"),
    )
    return page


def cell(value: Cell, column: Column) -> tuple[str, str]:
    """Return a cell in parts: the number, and its interval if it has one."""
    if not isinstance(value, Estimate):
        return text(value, column), ""
    number, _, interval = value.shown(column.digits).partition(" (")
    return number, interval.removesuffix(")")


def sort_key(value: Cell) -> str:
    """Return the number of a cell by which a table is sorted. Empty: the text is used, or the cell is empty."""
    if isinstance(value, Estimate):
        return repr(value.value)
    return repr(value) if isinstance(value, int | float) else ""
