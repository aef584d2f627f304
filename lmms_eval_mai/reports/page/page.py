"""Writes the page: fills the template with the tables as HTML, and with the figures and samples as packed blocks."""

import hashlib
from dataclasses import replace
from pathlib import Path

from lmms_eval_mai import __version__
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.reports import rules
from lmms_eval_mai.reports.formats import text
from lmms_eval_mai.reports.page.images import Images
from lmms_eval_mai.reports.page.samples import pack, pack_bytes, sample_blocks
from lmms_eval_mai.reports.report import Report
from lmms_eval_mai.reports.runs import Runs

ASSETS = Path(__file__).parent / "assets"


def check_installed() -> None:
    """Raise `MaiError` if jinja2 or plotly is missing, before anything is computed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise MaiError(
            f'The page needs jinja2 and plotly ({error}). Install them: pip install "lmms-eval-mai[report]".'
        ) from None


def write(path: Path, report: Report, runs: Runs, images: Images | None = None) -> None:
    """Write the page. Raises `ArgumentError` if the file cannot be written."""
    content = html(report, runs, images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", errors="replace")  # half a character, which a model may write
    except OSError as error:
        raise ArgumentError(f"--html {path} cannot be written ({error.strerror}).") from None


def html(report: Report, runs: Runs, images: Images | None = None) -> str:
    """Return the page, with the table of other rules. `runs`: the runs of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    from lmms_eval_mai.reports.page.figures import charts

    images = images or Images()
    keys = {table.key for table in report.tables}
    more = () if "rules" in keys else tuple(rules.rules_table(runs))
    report = replace(report, tables=(*report.tables, *more))
    blocks = {"charts": pack(list(charts(report, runs))), **dict(sample_blocks(runs))}
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
    environment.filters["text"] = text
    page: str = environment.get_template("page.html.jinja").render(
        report=report,
        gaps=[*report.gaps, *images.gaps],
        blocks=blocks,
        script=(ASSETS / "page.js").read_text(encoding="utf-8"),
        # Scripts need this word. Texts of models cannot contain it, because it is a digest of all of them.
        nonce=hashlib.sha256("".join(blocks.values()).encode()).hexdigest()[:32],
        version=__version__,
    )
    return page
