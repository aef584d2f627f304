"""The page: a report as one HTML file that opens without a network. It has the sentences, score over price, the tables,
and all samples with their calls.

Text of models and data sets is hostile. The template escapes all texts. The samples are blocks of compressed JSON,
whose texts the script sets with `textContent` only. The policy of the file allows no other script and no request.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from lmms_eval_mai import __version__
from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Cell, Column, Report, Table, in_title, names, text, title
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.figure import score_over_price
from lmms_eval_mai.analysis.tables.samples import right_of, samples, shown_runs
from lmms_eval_mai.errors import ArgumentError

FOLDER = Path(__file__).parent

Images = Mapping[str, Mapping[int, str]]
"""Benchmark -> document -> its image: WebP in base64."""


def write(path: Path, report: Report, runs: Runs, images: Images) -> None:
    """Write the page beside the file and rename it, so that a full disk leaves the page that was there. Raises
    `ArgumentError` if the file cannot be written."""
    content = html(report, runs, images).encode("utf-8", "replace")  # half a character, which a model may write
    file = path.resolve()
    beside = file.with_name(f"{file.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # such as /dev/stdout, which must stay
            path.write_bytes(content)
            return
        try:
            beside.write_bytes(content)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ArgumentError(f"--html {path} cannot be written ({error.strerror}).") from None


def html(report: Report, runs: Runs, images: Images) -> str:
    """Return the page. `runs`: the runs of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shown, benchmarks = shown_runs(runs), runs.benchmarks()
    documents = {run.benchmark: run.documents for run in sorted(shown, key=lambda run: run.documents)}  # the most
    different = list(dict.fromkeys(image for by_document in images.values() for image in by_document.values()))
    numbers = {image: number for number, image in enumerate(different)}
    blocks = {
        "images": pack(different),
        "right": pack({benchmark: right_of(runs, benchmark) for benchmark in benchmarks}),
        "runs": pack([{"benchmark": run.benchmark, "name": runs.name(run.setup)} for run in shown]),
    }
    for number, run in enumerate(shown):
        image_of = {doc_id: numbers[image] for doc_id, image in images.get(run.benchmark, {}).items()}
        blocks[f"samples-{number}"] = pack(samples(run, image_of))
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.get_template("page.html.jinja").render(
        report=report,
        about=about(runs),
        figures=[score_over_price(runs, benchmark) for benchmark in benchmarks],
        tables=[shown_table(table) for table in report.tables],
        runs=[_place(runs, run, benchmarks) for run in shown],
        replays=[_place(runs, run, benchmarks) for run in runs.select() if run.is_replay],
        pictures=[(benchmark_name(name), len(images.get(name, ())), most) for name, most in documents.items()],
        blocks=blocks,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        version=__version__,
    )
    return page


def about(runs: Runs) -> str:
    """Return a sentence that says which models answered what, and in how many ways."""
    every = runs.select()
    models = dict.fromkeys(filter(None, [*(run.setup.small for run in every), *(run.setup.model for run in every)]))
    documents = [
        f"{max(run.documents for run in every if run.benchmark == name):,} documents of {benchmark_name(name)}"
        for name in runs.benchmarks()
    ]
    named = ", ".join(f"{model} ({runs.roles[model]})" if model in runs.roles else model for model in models)
    return f"{named} answered {' and '.join(documents)} in {len({run.setup for run in every})} ways."


def _place(runs: Runs, run: FinishedRun, benchmarks: Sequence[str]) -> str:
    """Return the name of a run, with that of its benchmark if there are several."""
    name = runs.name(run.setup)
    return f"{benchmark_name(run.benchmark)}: {name}" if len(benchmarks) > 1 else name


# --- the tables ---


def shown_table(table: Table) -> dict[str, Any]:
    """Return a table as the page shows it: without the columns that its title names, and with a heading above the rows
    that only their last name tells apart."""
    rows = [[shown(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    *outer, name = [number for number in names(table) if number not in in_title(table)]
    kept = [name, *(number for number in range(len(table.columns)) if number not in (*names(table), *in_title(table)))]
    groups = groupby(rows, key=lambda row: [row[number][0] for number in outer])
    return {
        "key": table.key,
        "title": title(table),
        "columns": [table.columns[number] for number in kept],
        "groups": [
            (" · ".join(outers), [[row[number] for number in kept] for row in found]) for outers, found in groups
        ],
        "notes": table.notes,
    }


def shown(cell: Cell, column: Column[Any]) -> tuple[str, str]:
    """Return a cell as people read it, and its interval."""
    if not isinstance(cell, Estimate) or cell.low is None or cell.high is None:
        return text(cell, column), ""
    ends = f"{cell.low:.{column.digits}f} to {cell.high:.{column.digits}f}"
    return text(replace(cell, low=None, high=None), column), ends


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64. JSON's escapes keep texts that are not valid Unicode, such as half a
    character that a model wrote."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")
