"""One line of a samples file as rows of the tables of samples and calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lmms_eval_mai.method.benchmarks import BENCHMARKS
from lmms_eval_mai.reports.scoring import score_of

Line = dict[str, Any]
CIRCULAR = 1_000_000
"""MMBench: the index of a rotated question is that of the question plus a multiple of this number."""
SCORES = ("score", "exact_match", "relaxed_overall", "anls", "acc", "accuracy")
"""Fields of a line that hold a score of 0 to 1, the best first."""

SAMPLES: dict[str, tuple[type, str]] = {
    "target": (object, "The gold answer as lmms-eval logs it"),
    "score": (float, "0 to 1; nan if there is none"),
    "predicted": (object, "POPE: the predicted label (yes, no or other); None for others"),
    "gold": (object, "POPE: the gold label"),
    "group": (float, "MMBench: the question that the document is a rotation of; nan for others"),
    "is_main": (bool, "MMBench: whether this is the question in its original order"),
    "kind": (object, "The category of the question, as its trace names it; None if the data set has none"),
    "images": (object, "The hashes of its images; None if they are not logged"),
    "output_tokens": (float, "Of both models; nan if there are no token counts"),
    "exit": (object, "None without a trace"),
    "readable": (object, "Whether the scorer can read the final answer; None if it is not known"),
    "parsed": (object, "The final answer as the scorer reads it; None if it cannot"),
    "chose_threshold": (bool, "Whether an image of the document was used to choose the threshold"),
}
"""Columns of a table of samples: type and meaning. Its index is the document. A number that may be unknown is a float,
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
    "cut_off": (bool, "Whether a limit cut the answer off"),
    "shared": (bool, "Whether another run made the call"),
}
"""Columns of a table of calls."""
CALL_FIELDS = (*(name for name in CALLS if name not in ("doc_id", "seconds", "cut_off")), "total_s", "finish_reason")
"""The fields of a call in a trace that the table is made of."""


@dataclass(frozen=True)
class Record:
    """One answer with its texts."""

    row: Line
    """The row of the table of samples, and `doc_id`."""
    question: str
    """The prompt of the task, as lmms-eval logs it: question, options and instruction."""
    answer: str
    """The scored text."""
    trace: Line
    """The trace (docs/output.md). Empty: there is none."""

    @property
    def calls(self) -> Sequence[Line]:
        """The calls of the trace."""
        return self.trace.get("calls") or ()


def samples_table(rows: Sequence[Line]) -> pd.DataFrame:
    """Return the rows of answers as a table."""
    kinds = {"doc_id": int} | {name: kind for name, (kind, _) in SAMPLES.items()}
    table = pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in kinds.items()})
    return table.set_index("doc_id")


def calls_table(calls: Sequence[Line]) -> pd.DataFrame:
    """Return calls of traces as a table. They have `doc_id` and `CALL_FIELDS`, which may lack what is not known."""
    given = pd.DataFrame(calls, columns=["doc_id", *CALL_FIELDS], dtype=object)  # else None becomes nan in texts
    shared = given.shared.eq(True)
    times, cached = given.total_s.where(~shared), given.cached_tokens.astype(float).fillna(0)
    table = given.assign(seconds=times, cached_tokens=cached, cut_off=given.finish_reason == "length", shared=shared)
    return table[[*CALLS]].astype({name: kind for name, (kind, _) in CALLS.items()})


def record_of(benchmark: str, line: Line) -> Record:
    """Return the answer of a line; of repeats (`-n`) the first. Raises what a broken line raises."""
    counts = line.get("token_counts") or [None]
    trace: Line = counts[0] if isinstance(counts, list) and counts[0] else {}
    question, answer = str(line.get("input") or ""), str(line.get("filtered_resps") or "")
    return Record(_row(line, trace), question, answer, trace)


def _row(line: Line, trace: Line) -> Line:
    """Return an answer as a row of the table of samples, and its document."""
    labels = line.get("pope_f1_score")
    rotation = line.get("gpt_eval_score")
    index = int(rotation["index"]) if isinstance(rotation, dict) and "index" in rotation else None
    return {
        "doc_id": int(line["doc_id"]),
        "target": str(line["target"]),
        "score": _number(score_of_line(line)),
        "predicted": _label(labels["prediction"]) if isinstance(labels, dict) else None,
        "gold": _label(labels["ground_truth"]) if isinstance(labels, dict) else None,
        "group": math.nan if index is None else index % CIRCULAR,
        "is_main": index is None or index < CIRCULAR,
        "kind": trace.get("category"),
        "images": tuple(trace["images"]) if trace.get("images") else None,
        "output_tokens": _number(trace.get("output_tokens")),
        "exit": trace.get("exit"),
        "readable": trace.get("readable"),
        "parsed": trace.get("parsed"),
        "chose_threshold": bool(trace.get("chose_threshold")),
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
