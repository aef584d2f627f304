"""Reads the answers of a run with their texts: the lines of a samples file of lmms-eval, or of a file of traces.

A file `NAME.traces.jsonl` has answers that no task of lmms-eval has asked for: those of a server, or of `Cascade` in
Python, for `calibrate`. It has a line for each question, all with one method:

    {"id": "17", "question": "What is ...?", "mai": {"exit": "transfer", "calls": [...], "method": "mai", ...}}

`mai` is the field of the server's reply (docs/output.md). `id` joins the answers to one question by two methods. There
are no gold answers, so there are no scores.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmms_eval_mai.analysis.frames import Line, number, sample_row
from lmms_eval_mai.contract import Variant
from lmms_eval_mai.method.benchmarks import BENCHMARKS

TRACES = ".traces.jsonl"
"""The end of the names of files of traces."""
CIRCULAR = 1_000_000
"""MMBench: the index of a rotated question is that of the question plus a multiple of this number."""
SCORES = ("score", "exact_match", "relaxed_overall", "anls", "acc", "accuracy")
"""Fields of a line that hold a score of 0 to 1, the best first."""
BROKEN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What a line or a file that is broken, or of another version, raises."""


@dataclass(frozen=True)
class Record:
    """One answer with its texts."""

    row: Line
    """The row of the frame of samples, and `doc_id`."""
    question: str
    """The prompt of the task, as lmms-eval logs it: question, options and instruction."""
    answer: str
    """The scored text."""
    trace: Line
    """The trace (docs/output.md). Empty: there is none."""

    @property
    def calls(self) -> Sequence[Line]:
        return self.trace.get("calls") or ()


def records(file: Path, metrics: Sequence[str]) -> Iterator[Record | None]:
    """Yield one line of a samples file, or of a file of traces, after another; None for a line that cannot be read.
    `metrics`: those of the task, the first of which is a line's score if it is a number of 0 to 1."""
    with file.open("rb") as lines:
        for text in filter(bytes.strip, lines):
            try:
                line = json.loads(text.decode("utf-8-sig"))
                yield _record(_as_samples_line(line) if file.name.endswith(TRACES) else line, metrics)
            except BROKEN:
                yield None


def _record(line: Line, metrics: Sequence[str]) -> Record:
    """Return the answer of a line; of repeats (`-n`) the first. Raises what a broken line raises."""
    counts = line.get("token_counts") or [None]
    trace: Line = counts[0] if isinstance(counts, list) and counts[0] else {}
    labels, rotation = line.get("pope_f1_score"), line.get("gpt_eval_score")
    index = int(rotation["index"]) if isinstance(rotation, dict) and "index" in rotation else None
    row = {
        "doc_id": int(line["doc_id"]),
        "target": str(line["target"]),
        "score": number(_score(line, metrics)),
        "predicted": _label(labels["prediction"]) if isinstance(labels, dict) else None,
        "gold": _label(labels["ground_truth"]) if isinstance(labels, dict) else None,
        "group": math.nan if index is None else index % CIRCULAR,
        "is_main": index is None or index < CIRCULAR,
        **sample_row(trace),
    }
    return Record(row, str(line.get("input") or ""), str(line.get("filtered_resps") or ""), trace)


def _label(text: str | None) -> str:
    return text if text in ("yes", "no") else "other"


def _score(line: Line, metrics: Sequence[str]) -> float | None:
    """Return the score of a sample, 0 to 1, by the results of its task's scorer. None: no score is known."""
    pope_scores = (value.get("score") for value in line.values() if isinstance(value, dict))
    for value in (*map(line.get, (*metrics, *SCORES)), *pope_scores):
        if isinstance(value, int | float) and 0 <= value <= 1:
            return float(value)
    if isinstance(row := line.get("gpt_eval_score"), dict) and "prediction" in row:
        mmbench = BENCHMARKS["mmbench_en_dev"]
        return mmbench.score_of(mmbench.parse(str(row["prediction"]), row), str(row["answer"]))
    if isinstance(row := line.get("mmmu_acc"), dict) and row.get("question_type") == "multiple-choice":
        return float(row["parsed_pred"][0] == row["answer"])
    if isinstance(row, dict):
        from lmms_eval.tasks.mmmu.utils import eval_open

        return float(eval_open(row["answer"], row["parsed_pred"][0]))
    return None


# --- traces ---


def _as_samples_line(line: Line) -> Line:
    """Return a line of a file of traces as a line of a samples file. Raises what a broken line raises."""
    name, trace = str(line["id"]), line["mai"]
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    tokens = sum(call["output_tokens"] for call in trace["calls"])
    return {
        "doc_id": int(name) if name.isdecimal() and len(name) < 16 else int.from_bytes(digest),
        "target": "",
        "input": line.get("question", name),
        "token_counts": [{**trace, "output_tokens": tokens}],
    }


def prompt_of_trace(trace: Line) -> tuple[Variant, bool]:
    """Return the prompt of a trace as that of a task: S, E or R, and that it has one stage."""
    prompts = {call["prompt"] for call in trace["calls"]}
    is_task_prompt = any("task" in str(step.get("ask")) for step in trace["steps"])
    variant: Variant = "E" if "explain" in prompts else "R" if "think" in prompts else "S"
    return variant if is_task_prompt else "S", False
