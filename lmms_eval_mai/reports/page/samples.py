"""The samples of all runs for the page: one block of rows for each run, and how figures show the methods."""

import base64
import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.reports.folders import Run, records
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.replay import checks
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.reports.setups import KINDS
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
    return [run for kind in reversed(KINDS) for run in runs.of(kind) if not run.derived and len(run.samples)]


def sample_blocks(runs: Runs) -> Iterator[tuple[str, str]]:
    """Yield the name and the packed data of each block: `runs` with what the filters need, and `samples-N` with the
    rows of run N."""
    shown = shown_runs(runs)
    about = [
        {
            "task": benchmark_name(run.benchmark),
            "images": run.benchmark,
            "method": runs.name(run.setup),
            "exits": list(run.setup.method.exits) if run.ours else [],
        }
        for run in shown
    ]
    yield "runs", pack(about)
    yield from ((f"samples-{number}", pack(rows(runs, run))) for number, run in enumerate(shown))


def rows(runs: Runs, run: Run) -> list[dict[str, Any]]:
    """Return the answer to each document with its question, its calls, and what the checks compared."""
    effect, stops = effects(runs, run), list(checks(run)) if run.ours else []
    found = {}
    for record in records(run):
        row = record.row
        compared = [
            {
                "of": " and ".join(stop.agree),
                "a": text(of.a[doc_id]),
                "b": text(of.b[doc_id]),
                "agree": bool(of.agree[doc_id]),
            }
            for stop, of in stops
            if (doc_id := row["doc_id"]) in of.index
        ]
        calls = [
            {
                **{name: call[name] for name in ("side", "prompt", "text")},
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
            "checks": compared,
            "calls": calls,
        }
    return [found[doc_id] for doc_id in sorted(found)]


def text(answer: Any) -> str | None:
    """Return a parsed answer; None if it cannot be read."""
    return answer if isinstance(answer, str) else None


def effects(runs: Runs, run: Run) -> dict[int, str]:
    """Return "harm" or "rescue" for each document that a transfer changed against the large model's short answer."""
    answers = None if run.setup.kind == "alone" else transferred(runs, run)
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
    for run in (run for kind in KINDS for run in runs.of(kind)):
        side = run.calls.side.iloc[0] if len(run.calls) else "other"
        role = {"cascade": "mai", "full_rt": "full-rt", "own": "other"}.get(run.setup.kind, side)
        same = sum(look.role == role for look in found.values())
        found.setdefault(runs.name(run.setup), Look(role, SYMBOLS[same % len(SYMBOLS)]))
    return found
