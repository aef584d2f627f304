"""The samples of all runs for the page: one block of rows for each run, and how figures show the methods."""

import base64
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.reports.folders import Run, records
from lmms_eval_mai.reports.methods import MODES
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.reports.summary import transferred

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "star", "circle-open", "diamond-open", "square-open")


def pack(value: Any) -> str:
    """Return a value as compressed JSON in base64; the page decompresses it. JSON's escapes keep texts that are not
    valid Unicode, such as half a character that a model wrote."""
    return pack_bytes(json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii"))


def pack_bytes(data: bytes) -> str:
    """Return compressed bytes as base64. Equal data give equal texts."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


def shown_runs(runs: Runs) -> list[Run]:
    """Return the runs whose samples the page shows: the cascades first, then Full RT, then single models."""
    return [
        run
        for mode in reversed(MODES)
        for run in runs.of(mode)
        if not run.derived and run.samples_file is not None and len(run.samples)
    ]


def sample_blocks(runs: Runs) -> Iterator[tuple[str, str]]:
    """Yield the name and the packed data of each block: `runs` with what the filters need, and `samples-N` with the
    rows of run N."""
    shown = shown_runs(runs)
    about = [
        {
            "task": benchmark_name(run.benchmark),
            "images": run.benchmark,
            "method": runs.name(run.method),
            "exits": list(dict.fromkeys(run.samples.exit.dropna())),
        }
        for run in shown
    ]
    yield "runs", pack(about)
    yield from ((f"samples-{number}", pack(rows(runs, run))) for number, run in enumerate(shown))


def rows(runs: Runs, run: Run) -> list[dict[str, Any]]:
    """Return the first answer to each document with its question, its calls, and what the checks compared."""
    effect, last = effects(runs, run), {record.row["doc_id"]: record for record in records(run)}
    found = []
    for doc_id in sorted(last):
        record, row = last[doc_id], last[doc_id].row
        checks = [
            {"small": small, "large": row["large_answer"], "agree": agree}
            for small, agree in ((row["small_answer"], row["agree"]), (row["thought_answer"], row["agree_think"]))
            if agree is not None
        ]
        calls = [
            {
                "side": call["side"],
                "stage": call["stage"],
                "text": call["text"],
                "tokens": call["output_tokens"],
                "seconds": None if math.isnan(call["seconds"]) else round(call["seconds"], 4),
                "cut": call["cut_off"],
            }
            for call in record.calls
        ]
        found.append(
            {
                "id": doc_id,
                "question": record.question,
                "gold": row["target"],
                "answer": record.answer,
                "score": None if math.isnan(row["score"]) else row["score"],
                "exit": row["exit"] or "",
                "effect": effect.get(doc_id, ""),
                "kind": row["kind"] or "",
                "checks": checks,
                "calls": calls,
            }
        )
    return found


def effects(runs: Runs, run: Run) -> dict[int, str]:
    """Return "harm" or "rescue" for each document that a transfer changed against the large model's short answer."""
    answers = None if run.method.mode == "alone" else transferred(runs, run)
    if answers is None:
        return {}
    changed = answers[(answers.repeat == 0) & (answers.after != answers.before)]
    return {doc_id: "harm" if was_right else "rescue" for doc_id, was_right in changed.before.items()}


@dataclass(frozen=True, slots=True)
class Look:
    """How figures show a method."""

    role: str
    """`mai`, `full-rt`, `large`, `small` or `other`: the name of its colour."""
    symbol: str


def looks(runs: Runs) -> dict[str, Look]:
    """Return the look of each method by its name. Methods of one role differ in their symbols."""
    methods = [run.method for mode in MODES for run in runs.of(mode)]
    pairs = [method for method in methods if method.mode != "alone"]
    sides = dict.fromkeys((pair.small for pair in pairs), "small") | dict.fromkeys(
        (pair.model for pair in pairs), "large"
    )
    of_mode = {"cascade": "mai", "transfer": "full-rt"}
    roles = {method: of_mode.get(method.mode) or sides.get(method.model, "other") for method in methods}
    found = {}
    for method, role in roles.items():
        same = [other for other in roles if roles[other] == role]
        found[runs.name(method)] = Look(role, SYMBOLS[same.index(method) % len(SYMBOLS)])
    return found
