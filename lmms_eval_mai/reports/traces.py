"""Answers that no task of lmms-eval has asked for: those of a server, or of `Cascade` in Python, for `calibrate`.

A file `NAME.traces.jsonl` of the user's has a line for each question, all in one mode:

    {"id": "17", "question": "What is ...?", "mai": {"mode": "transfer", "exit": "transfer", "calls": [...], ...}}

`mai` is the field of the server's reply (docs/output.md). `id` joins the answers to one question in two modes.
The fields `small` and `large` may name the models. There are no gold answers, so there are no scores.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports.methods import Method

ENDING = ".traces.jsonl"
TASK = "traces"


def method_of(file: Path) -> Method:
    """Return the method of a file, by its first line. Raises `ArgumentError`."""
    try:
        with file.open(encoding="utf-8") as lines:
            line = json.loads(next(lines))
        mai, small, large = line["mai"], line.get("small", "small"), line.get("large", "large")
        mode, stages = mai["mode"], [call["stage"] for call in mai["calls"]]
    except (OSError, StopIteration, LookupError, TypeError, ValueError) as error:
        raise ArgumentError(f"{file}: the first line has no mai with mode and calls ({error!r}).") from None
    if mode not in EXITS:
        raise ArgumentError(f"{file}: mode={mode} is unknown: expected {', '.join(EXITS)}.")
    if mode in ("small", "large"):
        return Method("alone", {"small": small, "large": large}[mode], "", "R" if "think" in stages else "S")
    return Method(mode, large, small, "R")


def line_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line as a line of a samples file. Raises what a broken line raises."""
    name, trace = str(line["id"]), line["mai"]
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    tokens = sum(call["output_tokens"] for call in trace["calls"])
    return {
        "doc_id": int(name) if name.isdecimal() and len(name) < 16 else int.from_bytes(digest),
        "target": "",
        "input": line.get("question", name),
        "token_counts": [{**trace, "output_tokens": tokens}],
    }
