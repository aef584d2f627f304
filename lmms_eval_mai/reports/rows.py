"""One line of a samples file as rows of the tables of samples and calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.reports.scoring import score_of

Line = dict[str, Any]
CIRCULAR = 1_000_000
"""MMBench: the index of a rotated question is that of the question plus a multiple of this number."""
SCORES = ("score", "exact_match", "relaxed_overall", "anls", "acc", "accuracy")
"""Fields of a line that hold a score of 0 to 1, the best first."""

SAMPLES: dict[str, tuple[type, str]] = {
    "repeat": (int, "Number of the answer of this document, from 0"),
    "target": (object, "The gold answer as lmms-eval logs it"),
    "score": (float, "0 to 1; nan if there is none"),
    "predicted": (object, "POPE: the predicted label (yes, no or other); None for others"),
    "gold": (object, "POPE: the gold label"),
    "group": (float, "MMBench: the question that the document is a rotation of; nan for others"),
    "is_main": (bool, "MMBench: whether this is the question in its original order"),
    "kind": (object, "The kind of the question; None if the data set has none"),
    "images": (object, "The hashes of its images; None if they are not logged"),
    "output_tokens": (float, "Of both models; nan if there are no token counts"),
    "exit": (object, "None without a trace"),
    "readable": (object, "Whether the scorer can read the final answer; None if it is not known"),
    "parsed": (object, "The final answer as the scorer reads it; None if it cannot"),
    "small_answer": (object, "The parsed answers of the first verification: the small model's short answer,"),
    "large_answer": (object, "the large model's,"),
    "agree": (object, "and whether they agree; None without a verification of both"),
    "thought_answer": (
        object,
        "The small model's answer after its thinking: that of the second verification, or of Full RT",
    ),
    "has_thought": (bool, "Whether the trace has the answer after the thinking; older traces of Full RT do not"),
    "answer_logprob": (float, "Of the large model's short answer; nan if the engine does not report it"),
    "agree_think": (object, "Whether the thought answer agrees with the large model's short answer; None without one"),
    "layer": (float, "Sparse transfer: the layer whose attention selected the tokens; nan if nothing was selected"),
    "kept_tokens": (float, "Sparse transfer: the tokens of the thinking that were kept,"),
    "scored_tokens": (float, "of these"),
}
"""Columns of a table of samples: type and meaning. Its index is the document. A number that may be unknown is a float,
so that nan can stand for it."""
CALLS: dict[str, tuple[type, str]] = {
    "doc_id": (int, "The document"),
    "repeat": (int, "Number of the answer of this document, from 0"),
    "side": (object, "small or large"),
    "stage": (object, "The stage of the cascade (contract.Stage)"),
    "prompt_tokens": (int, "With image tokens and cached tokens"),
    "cached_tokens": (int, "From the engine's prefix cache"),
    "image_tokens": (float, "nan if they are not known"),
    "output_tokens": (float, "All generated tokens"),
    "answer_tokens": (float, "Of the extracted answer; nan if they are not known"),
    "seconds": (float, "nan if the call is shared: another run made it"),
    "cut_off": (bool, "Whether a limit cut the answer off"),
    "shared": (bool, "Whether another run made the call"),
}
"""Columns of a table of calls."""


@dataclass(frozen=True)
class Record:
    """One answer with its texts."""

    row: Line
    """The row of the table of samples, and `doc_id`."""
    question: str
    """The prompt of the task, as lmms-eval logs it: question, options and instruction."""
    answer: str
    """The scored text."""
    calls: tuple[Line, ...]
    """The calls as rows of the table of calls, and their `text`."""


def table_of(columns: dict[str, tuple[type, str]], rows: Sequence[Line] = ()) -> pd.DataFrame:
    """Return rows as a table with these columns."""
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=kind) for name, (kind, _) in columns.items()}
    )


def answers_of(benchmark: str, line: Line) -> list[Record]:
    """Return the answers of a line: one, or one for each repeat (`-n`). Raises what a broken line raises."""
    counts = line.get("token_counts") or [None]
    first: Line = counts[0] if isinstance(counts, list) and counts[0] else {}
    question, answer = str(line.get("input") or ""), str(line.get("filtered_resps") or "")
    found = []
    for repeat, trace in enumerate([first, *(first.get("repeats") or ())]):
        row = _row(benchmark, line, trace, repeat)
        calls = tuple(_call(call, row["doc_id"], repeat) for call in trace.get("calls") or ())
        found.append(Record(row, question, answer, calls))
    return found


def _row(benchmark: str, line: Line, trace: Line, repeat: int) -> Line:
    """Return an answer as a row of the table of samples, and its document."""
    target = str(line["target"])
    labels = line.get("pope_f1_score")
    rotation = line.get("gpt_eval_score")
    index = int(rotation["index"]) if isinstance(rotation, dict) and "index" in rotation else None
    if repeat:  # lmms-eval logs the score of the first answer
        is_known = "parsed" in trace or trace.get("readable") is False
        score = score_of(benchmark, trace.get("parsed"), target) if is_known else None
        predicted = trace.get("parsed")
    else:
        score = score_of_line(line)
        predicted = labels["prediction"] if isinstance(labels, dict) else None
    calls = {(call["side"], call["stage"]): call for call in trace.get("calls") or ()}
    compared = list(trace.get("answers") or ())
    if ("small", "short") not in calls:  # verify=confidence has only the second verification
        compared.insert(0, {})
    first, second = [*compared, {}, {}][:2]
    selection = trace.get("selection") or {}
    return {
        "doc_id": int(line["doc_id"]),
        "repeat": repeat,
        "target": target,
        "score": _number(score),
        "predicted": _label(predicted) if isinstance(labels, dict) else None,
        "gold": _label(labels["ground_truth"]) if isinstance(labels, dict) else None,
        "group": math.nan if index is None else index % CIRCULAR,
        "is_main": index is None or index < CIRCULAR,
        "kind": _kind(line, trace),
        "images": tuple(trace["images"]) if trace.get("images") else None,
        "output_tokens": _number(trace.get("output_tokens")),
        "exit": trace.get("exit"),
        "readable": trace.get("readable"),
        "parsed": trace.get("parsed"),
        "small_answer": first.get("small"),
        "large_answer": trace.get("parsed") if trace.get("exit") == "confident" else (first or second).get("large"),
        "agree": first.get("agree"),
        "thought_answer": second["small"] if second else trace.get("thought"),
        "has_thought": bool(second) or "thought" in trace,
        "answer_logprob": _number(calls.get(("large", "short"), {}).get("answer_logprob")),
        "agree_think": second.get("agree"),
        "layer": _number(selection.get("layer")),
        "kept_tokens": _number(selection.get("kept_tokens")),
        "scored_tokens": _number(selection.get("scored_tokens")),
    }


def _call(call: Line, doc_id: int, repeat: int) -> Line:
    shared = bool(call.get("shared"))
    return {
        "doc_id": doc_id,
        "repeat": repeat,
        "side": call["side"],
        "stage": call["stage"],
        "prompt_tokens": int(call["prompt_tokens"]),
        "cached_tokens": int(call.get("cached_tokens") or 0),
        "image_tokens": _number(call.get("image_tokens")),
        "output_tokens": int(call["output_tokens"]),
        "answer_tokens": _number(call.get("answer_tokens")),
        "seconds": _number(None if shared else call["total_s"]),
        "cut_off": call["finish_reason"] == "length",
        "shared": shared,
        "text": call["text"],
    }


def _label(text: str | None) -> str:
    return text if text in ("yes", "no") else "other"


def _number(value: float | None) -> float:
    """Return a number; nan for None. Raises `ValueError` if it is nan or infinite."""
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return math.nan if value is None else float(value)


def score_of_line(line: Line) -> float | None:
    """Return the score of a sample, 0 to 1, by the results of its task's scorer. None: no score is known."""
    for name in SCORES:
        value = line.get(name)
        if isinstance(value, int | float) and 0 <= value <= 1:
            return float(value)
    for value in line.values():
        if isinstance(value, dict) and isinstance(value.get("score"), int | float) and 0 <= value["score"] <= 1:
            return float(value["score"])  # POPE's own task
    if isinstance(row := line.get("gpt_eval_score"), dict) and "prediction" in row:
        parsed = BENCHMARKS["mmbench_en_dev"].parse(str(row["prediction"]), row)
        return score_of("mmbench_en_dev", parsed, str(row["answer"]))
    if isinstance(row := line.get("mmmu_acc"), dict) and row.get("question_type") == "multiple-choice":
        return float(row["parsed_pred"][0] == row["answer"])
    if isinstance(row, dict):
        from lmms_eval.tasks.mmmu.utils import eval_open

        return float(eval_open(row["answer"], row["parsed_pred"][0]))
    return None


def _kind(line: Line, trace: Line) -> str | None:
    """Return the kind of a question: its category in the data set."""
    if "relaxed_human_split" in line:
        return "human"
    if "relaxed_augmented_split" in line:
        return "augmented"
    if isinstance(row := line.get("mmmu_acc"), dict):
        return str(row.get("subdomain", ""))
    if isinstance(row := line.get("gpt_eval_score"), dict):
        return str(row.get("category", ""))
    return trace.get("category")
