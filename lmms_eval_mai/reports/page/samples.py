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
    return [run for mode in reversed(MODES) for run in runs.of(mode) if not run.derived and len(run.samples)]


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
    """Return the answer to each document with its question, its calls, and what the checks compared."""
    effect = effects(runs, run)
    found = {}
    for record in records(run):
        row = record.row
        checks = [
            {"small": small, "large": row["large_answer"], "agree": agree}
            for small, agree in ((row["small_answer"], row["agree"]), (row["thought_answer"], row["agree_think"]))
            if agree is not None
        ]
        calls = [
            {
                **{name: call[name] for name in ("side", "stage", "text")},
                "tokens": call["output_tokens"],
                "seconds": None if call.get("shared") else round(call["total_s"], 4),
                "cut": call["finish_reason"] == "length",
            }
            for call in record.calls
        ]
        found[row["doc_id"]] = {
            "id": row["doc_id"],
            "question": record.question,
            "gold": row["target"],
            "answer": record.answer,
            "score": None if math.isnan(row["score"]) else row["score"],
            "exit": row["exit"] or "",
            "effect": effect.get(row["doc_id"], ""),
            "kind": row["kind"] or "",
            "checks": checks,
            "calls": calls,
        }
    return [found[doc_id] for doc_id in sorted(found)]


def effects(runs: Runs, run: Run) -> dict[int, str]:
    """Return "harm" or "rescue" for each document that a transfer changed against the large model's short answer."""
    answers = None if run.method.mode == "alone" else transferred(runs, run)
    if answers is None:
        return {}
    changed = answers[answers.after != answers.before]
    return {doc_id: "harm" if was_right else "rescue" for doc_id, was_right in changed.before.items()}


@dataclass(frozen=True, slots=True)
class Look:
    """How figures show a method."""

    role: str
    """`mai`, `full-rt`, `large`, `small` or `other`: the name of its colour."""
    symbol: str


def looks(runs: Runs) -> dict[str, Look]:
    """Return the look of each method by its name. Methods of one role differ in their symbols."""
    found: dict[str, Look] = {}
    for run in (run for mode in MODES for run in runs.of(mode)):
        side = run.calls.side.iloc[0] if len(run.calls) else "other"
        role = {"cascade": "mai", "transfer": "full-rt", "own": "other"}.get(run.method.mode, side)
        same = sum(look.role == role for look in found.values())
        found.setdefault(runs.name(run.method), Look(role, SYMBOLS[same % len(SYMBOLS)]))
    return found
