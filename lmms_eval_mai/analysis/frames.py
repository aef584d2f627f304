"""Traces as two pandas frames: a row for each sample, and one for each call. All figures are sums over their rows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lmms_eval_mai.engines.thinking import thought_first
from lmms_eval_mai.method.repeats import is_endless

Line = dict[str, Any]
"""A JSON object: a line of a samples file, its trace, or a call of the trace (docs/output.md)."""

SAMPLES: dict[str, tuple[type, str]] = {
    "target": (object, "The gold answer as lmms-eval logs it"),
    "score": (float, "0 to 1; nan if there is none"),
    "predicted": (object, "POPE: the predicted label (yes, no or other); None for others"),
    "gold": (object, "POPE: the gold label"),
    "group": (float, "MMBench: the question that the document is a rotation of; nan for others"),
    "is_main": (bool, "MMBench: whether this is the question in its original order"),
    "category": (object, "The category of the question, as its trace names it; None if the data set has none"),
    "images": (object, "The hashes of its images; None if they are not logged"),
    "output_tokens": (float, "Of both models; nan if there are no token counts"),
    "exit": (object, "None without a trace"),
    "readable": (object, "Whether the scorer can read the final answer; None if it is not known"),
    "parsed": (object, "The final answer as the scorer reads it; None if it cannot"),
    "chose_threshold": (bool, "Whether an image of the document was used to choose the threshold"),
    "scored_tokens": (float, "Sparse transfer: tokens of the thinking; nan for others"),
    "kept_tokens": (float, "Sparse transfer: those that were transferred"),
}
"""Columns of a frame of samples: type and meaning. Its index is the document. A number that may be unknown is a float,
so that nan can stand for it."""
CALLS: dict[str, tuple[type, str]] = {
    "doc_id": (int, "The document"),
    "side": (object, "small or large"),
    "prompt": (object, "What the call asks (contract.CallPrompt)"),
    "of": (object, "The call whose thinking it reads, such as small.think; None if there is none"),
    "parsed": (object, "Its answer as the scorer reads it; None if it cannot"),
    "answer_logprob": (float, "Log-probability of the answer; nan if the engine does not report it"),
    "prompt_tokens": (int, "With image tokens and cached tokens"),
    "cached_tokens": (int, "From the engine's prefix cache"),
    "image_tokens": (float, "nan if they are not known"),
    "output_tokens": (float, "All generated tokens"),
    "answer_tokens": (float, "Of the extracted answer; nan if they are not known"),
    "seconds": (float, "nan if the call is shared: another run made it"),
    "started_at": (float, "Unix time; nan if the call is shared"),
    "cut_off": (bool, "Whether a limit cut the answer off"),
    "endless": (bool, "Whether it is a thinking in a loop, which its limit or stop_repeats ended"),
    "shared": (bool, "Whether another run made the call"),
    "thought_first": (bool, "Whether the model thought by itself before a short answer, though it must not"),
}
"""Columns of a frame of calls."""


class Frames(NamedTuple):
    """The samples and the calls of a task, or of several runs."""

    samples: pd.DataFrame
    """`SAMPLES`."""
    calls: pd.DataFrame
    """`CALLS`."""


def samples_and_calls(rows: Sequence[Line], calls: Sequence[Line]) -> Frames:
    """Return rows of samples (`sample_row`) and of calls (`call_row`) as frames. Both may lack what is not known."""
    types = {"doc_id": int} | {name: dtype for name, (dtype, _) in SAMPLES.items()}
    samples = {
        name: pd.Series([row.get(name, name == "is_main" if dtype is bool else None) for row in rows], dtype=dtype)
        for name, dtype in types.items()
    }
    columns = {name: pd.Series([call.get(name) for call in calls], dtype=dtype) for name, (dtype, _) in CALLS.items()}
    return Frames(pd.DataFrame(samples).set_index("doc_id"), pd.DataFrame(columns))


def sample_row(trace: Line) -> Line:
    """Return what a trace tells about its sample."""
    selection = trace.get("selection") or {}
    return {
        "category": trace.get("category"),
        "images": tuple(trace["images"]) if trace.get("images") else None,
        "output_tokens": number(trace.get("output_tokens")),
        "exit": trace.get("exit"),
        "readable": trace.get("readable"),
        "parsed": trace.get("parsed"),
        "chose_threshold": bool(trace.get("chose_threshold")),
        **{name: selection.get(name) for name in ("scored_tokens", "kept_tokens")},
    }


def call_row(doc_id: int, call: Line) -> Line:
    """Return a call of a trace without its texts, which would need much memory."""
    row = {name: call.get(name) for name in CALLS}
    shared, prompt, text = bool(row["shared"]), str(row["prompt"]), str(call.get("text"))
    return row | {
        "doc_id": doc_id,
        "cached_tokens": row["cached_tokens"] or 0,
        "seconds": None if shared else call.get("total_s"),
        "cut_off": call.get("finish_reason") == "length",
        "endless": is_endless(prompt, str(call.get("finish_reason")), text, call.get("thinking")),
        "shared": shared,
        "thought_first": thought_first(prompt, text, call.get("thinking")),
    }


def number(value: float | None) -> float:
    """Return a number; nan for None. Raises `ValueError` if it is nan or infinite."""
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return math.nan if value is None else float(value)


PAUSE_S = 5.0
"""No process makes a call so soon after its start, so a resumed run has a longer pause between two processes."""


def wall_s_by_task(tasks: Mapping[str, pd.DataFrame], is_resumed: bool = False) -> dict[str, float]:
    """Return the wall time of each task of a run. The time between the ends of two documents belongs to the task of the
    second one, because documents of several tasks are open at the same time. The pauses of a resumed run are left out.
    Empty: not known. `tasks`: task -> its calls."""
    calls = pd.concat(tasks, names=["task"]).reset_index("task")
    ends = calls.started_at + calls.seconds
    if ends.isna().any():
        return {}
    documents = ends.groupby([calls.task, calls.doc_id]).max().sort_values()
    parts = documents.diff().fillna(documents.min() - calls.started_at.min())
    started = calls.started_at.sort_values(ignore_index=True)
    pauses = started - pd.Series(ends.to_numpy()[calls.started_at.argsort()]).cummax().shift()
    for number in pauses.index[pauses > PAUSE_S] if is_resumed else ():
        parts.iloc[documents.searchsorted(started[number])] -= pauses[number]
    return {str(task): float(seconds) for task, seconds in parts.groupby("task").sum().items()}
