"""The page: a report as one HTML file that opens without a network. It has the tables, score over output tokens, and
all samples with their calls.

Text of models and data sets is hostile. The template escapes all texts. The samples are blocks of compressed JSON,
whose texts the script sets with `textContent` only. The policy of the file allows no other script and no request.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lmms_eval_mai import __version__
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Report, text
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.records import Record, records
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.runs.setups import FAMILIES
from lmms_eval_mai.analysis.tables.summary import RIGHT, spent
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError

FOLDER = Path(__file__).parent
X_ENDS, Y_ENDS = (42, 466), (240, 12)
"""Coordinates of the ends of the axes, in a figure of 480 x 280."""
TOKENS = [step * 10.0**power for power in range(-1, 6) for step in (1, 2, 5)]
"""Ticks of the logarithmic axis."""

Images = Mapping[str, Mapping[int, str]]
"""Benchmark -> document -> its image: WebP in base64."""


def write(path: Path, report: Report, runs: Runs, images: Images) -> None:
    """Write the page. Raises `ArgumentError` if the file cannot be written."""
    content = html(report, runs, images)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", errors="replace")  # half a character, which a model may write
    except OSError as error:
        raise ArgumentError(f"--html {path} cannot be written ({error.strerror}).") from None


def html(report: Report, runs: Runs, images: Images) -> str:
    """Return the page. `runs`: the runs of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shown = shown_runs(runs)
    different = list(dict.fromkeys(image for by_document in images.values() for image in by_document.values()))
    numbers = {image: number for number, image in enumerate(different)}
    blocks = {"images": pack(different)}
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
    environment.filters["text"] = text
    page: str = environment.get_template("page.html.jinja").render(
        report=report,
        charts=[chart for benchmark in runs.benchmarks() if (chart := score_over_tokens(runs, benchmark))],
        runs=[f"{benchmark_name(run.benchmark)}: {runs.name(run.setup)}" for run in shown],
        exits=list(dict.fromkeys(exit for run in shown for exit in run.samples.exit.dropna())),
        blocks=blocks,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        version=__version__,
    )
    return page


# --- the figure ---


class Axis(NamedTuple):
    ticks: Sequence[float]
    ends: tuple[int, int]
    scale: Callable[[npt.ArrayLike], Any]

    def coordinate(self, value: float) -> float:
        ends = self.scale([self.ticks[0], self.ticks[-1]])
        return round(float(np.interp(self.scale(value), ends, self.ends)), 1)


def score_over_tokens(runs: Runs, benchmark: str) -> dict[str, Any] | None:
    """Return the figure of a benchmark: its ticks and points with their coordinates, and each point in words. None: no
    method has a score and output tokens."""
    costs = {run: sum(spent(run)[f"{side}_tokens"] or 0 for side in SIDES) for run in runs.select(benchmark=benchmark)}
    methods = [(run, tokens, score) for run, tokens in costs.items() if tokens and (score := runs.score(run))]
    if not methods:
        return None
    scores = [end for *_, score in methods for end in (score.value, *score.ends)]
    step = next((step for step in (1, 2, 5, 10) if max(scores) - min(scores) <= 6 * step), 20)
    x = Axis(ticks([tokens for _, tokens, _ in methods], TOKENS), X_ENDS, np.log)
    y = Axis(ticks(scores, range(0, 101, step)), Y_ENDS, np.asarray)
    points = [
        {
            "x": x.coordinate(tokens),
            "y": y.coordinate(score.value),
            "interval": [y.coordinate(end) for end in score.ends],
            "family": run.setup.family,
            "words": f"{runs.name(run.setup)}: score {score.shown(1)}, {tokens:,.1f} output tokens",
        }
        for run, tokens, score in methods
    ]
    x_ticks, y_ticks = ([(axis.coordinate(tick), f"{tick:,g}") for tick in axis.ticks] for axis in (x, y))
    return {"benchmark": benchmark_name(benchmark), "x_ticks": x_ticks, "y_ticks": y_ticks, "points": points}


def ticks(values: Sequence[float], choices: Sequence[float]) -> list[float]:
    """Return the ticks of an axis: those of `choices` from the last one below all values to the first one above."""
    first = max((tick for tick in choices if tick < min(values)), default=choices[0])
    last = min((tick for tick in choices if tick > max(values)), default=choices[-1])
    return [tick for tick in choices if first <= tick <= last]


# --- the samples ---


def shown_runs(runs: Runs) -> list[FinishedRun]:
    """Return the runs whose samples the page shows: the cascades first, then Full RT, then single models."""
    return [
        run for family in reversed(FAMILIES) for run in runs.select(family) if not run.is_replay and len(run.samples)
    ]


def samples(run: FinishedRun, images: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return each answer of a run with its question and its calls, by document. `images`: document -> the number of its
    image in the block of images."""
    by_document = {record.row["doc_id"]: _sample(record) for record in records(run.samples_file, run.metrics) if record}
    return [sample | {"image": images.get(doc_id)} for doc_id, sample in sorted(by_document.items())]


def _sample(record: Record) -> dict[str, Any]:
    row, score = record.row, record.row["score"]
    is_scored = not math.isnan(score)
    facts = {"gold answer": row["target"], "scored answer": record.answer, "kind of question": row["category"] or ""}
    if is_scored:
        facts["score"] = f"{score:g}"
    return {
        "doc_id": row["doc_id"],
        "exit": row["exit"] or "",
        "answer": ("right" if score >= RIGHT else "wrong") if is_scored else "",
        "question": record.question,
        "facts": {name: fact for name, fact in facts.items() if fact},
        "calls": [
            {
                "about": f"{call['side']} model, {call['prompt']}: {call['output_tokens']:,} tokens"
                + ("" if call.get("shared") else f", {call['total_s']:.3f} s")
                + (", cut off" if call["finish_reason"] == "length" else "")
                + ("; no answer" if call.get("parsed") is None else f"; answer: {call['parsed']}"),
                "text": "\n\n".join(filter(None, (call.get("thinking"), call["text"]))),
            }
            for call in record.calls
        ],
    }


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64. JSON's escapes keep texts that are not valid Unicode, such as half a
    character that a model wrote."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")
