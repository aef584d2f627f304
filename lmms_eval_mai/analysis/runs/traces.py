"""Answers that no task of lmms-eval has asked for: those of a server, or of `Cascade` in Python, for `calibrate`.

A file `NAME.traces.jsonl` of the user's has a line for each question, all with one method:

    {"id": "17", "question": "What is ...?", "mai": {"exit": "transfer", "calls": [...], "method": "mai", ...}}

`mai` is the field of the server's reply (docs/output.md). `id` joins the answers to one question by two methods. There
are no gold answers, so there are no scores.
"""

import hashlib
from typing import Any

from lmms_eval_mai.method.prompts import Variant

ENDING = ".traces.jsonl"
TASK = "traces"


def prompt_of(trace: dict[str, Any]) -> tuple[Variant, bool]:
    """Return the prompt of a trace as that of a task: S, E or R, and that it has one stage."""
    prompts = {call["prompt"] for call in trace["calls"]}
    asks_own = any("task" in str(step.get("ask")) for step in trace["steps"])
    variant: Variant = "E" if "explain" in prompts else "R" if "think" in prompts else "S"
    return variant if asks_own else "S", False


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
