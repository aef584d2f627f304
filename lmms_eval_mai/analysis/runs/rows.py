"""One line of a samples file as rows of the frames of samples and calls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmms_eval_mai.analysis.frames import number, sample_row
from lmms_eval_mai.method.benchmarks import BENCHMARKS

Line = dict[str, Any]
CIRCULAR = 1_000_000
"""MMBench: the index of a rotated question is that of the question plus a multiple of this number."""
SCORES = ("score", "exact_match", "relaxed_overall", "anls", "acc", "accuracy")
"""Fields of a line that hold a score of 0 to 1, the best first."""


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
        "score": number(score_of_line(line)),
        "predicted": _label(labels["prediction"]) if isinstance(labels, dict) else None,
        "gold": _label(labels["ground_truth"]) if isinstance(labels, dict) else None,
        "group": math.nan if index is None else index % CIRCULAR,
        "is_main": index is None or index < CIRCULAR,
        **sample_row(trace),
    }


def _label(text: str | None) -> str:
    return text if text in ("yes", "no") else "other"


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
        mmbench = BENCHMARKS["mmbench_en_dev"]
        return mmbench.score_of(mmbench.parse(str(row["prediction"]), row), str(row["answer"]))
    if isinstance(row := line.get("mmmu_acc"), dict) and row.get("question_type") == "multiple-choice":
        return float(row["parsed_pred"][0] == row["answer"])
    if isinstance(row, dict):
        from lmms_eval.tasks.mmmu.utils import eval_open

        return float(eval_open(row["answer"], row["parsed_pred"][0]))
    return None
