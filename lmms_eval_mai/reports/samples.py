"""Reads one samples file of lmms-eval, line by line: `Reader.records` yields one `SampleRecord` for each document."""

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from lmms_eval_mai.paper.agreement import Verification, read_answer
from lmms_eval_mai.paper.benchmarks import BENCHMARKS
from lmms_eval_mai.reports.records import CallCost, CallText, Document, Run, SampleRecord
from lmms_eval_mai.reports.scoring import form_of, score_of

Line = dict[str, Any]
CIRCULAR = 1_000_000
"""MMBench: the index of a rotated question is that of the question plus a multiple of this number."""
SCORES = ("score", "exact_match", "relaxed_overall", "anls", "acc", "accuracy")
"""Fields of a line that hold a score of 0 to 1, the best first."""
RULES_CAN_CHANGE = ("chartqa", "infovqa_val")
"""Benchmarks whose rule of agreement has a parameter. Their parsers do not read the document."""


class Reader:
    """Reads the samples file of a run, and counts what is wrong with it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.broken = self.unscored = self.untraced = self.repeats = 0

    def records(self) -> Iterator[SampleRecord]:
        """Read one line after another. Lines that are not JSON are skipped."""
        assert self.run.samples_file is not None
        with self.run.samples_file.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    record = self._record(json.loads(line))
                except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                    self.broken += 1
                    continue
                self.unscored += record.document.score is None
                self.untraced += record.document.exit is None
                yield record

    def gaps(self, number: int, repeated: int) -> Iterator[str]:
        """Return a sentence for each thing that is wrong with the file. Arguments: the number of its documents, and of
        its lines for a document that it has already."""
        file, run = self.run.samples_file, self.run
        if self.broken:
            yield f"{file}: {_count(self.broken, 'line')} cannot be read. Did the run break off?"
        if repeated:
            yield f"{file}: {_count(repeated, 'line')} for a document that has one already; the last one is used."
        missing = run.number - number
        if missing > 0 and run.not_answered >= missing:
            yield f"{file}: {missing} of {run.number} documents have no line, because they failed."
        elif missing > 0:
            yield f"{file}: {missing} of {run.number} documents have no line. Did the run break off?"
        if self.unscored:
            yield f"{file}: {_count(self.unscored, 'document')} without a score from 0 to 1; the total score is used."
        if run.ours and self.untraced:
            yield (
                f"{file}: {_count(self.untraced, 'document')} without a trace, because lmms-eval's response cache "
                "answered. There are no exits, tokens and seconds for them."
            )
        if self.repeats:
            yield f"{file}: each document was answered several times (-n); the report uses the first answer."

    def _record(self, line: Line) -> SampleRecord:
        counts = line.get("token_counts") or [None]
        trace: Line = counts[0] if isinstance(counts, list) and counts[0] else {}
        self.repeats += bool(trace.get("repeats"))
        calls = trace.get("calls") or []
        texts = tuple(
            CallText(
                call["side"],
                call["stage"],
                call["text"],
                call["output_tokens"],
                _seconds(call),
                call["finish_reason"] == "length",
                bool(call.get("shared")),
            )
            for call in calls
        )
        return SampleRecord(
            self._document(line, trace, calls),
            str(line.get("input") or ""),
            str(line.get("filtered_resps") or ""),
            texts,
        )

    def _document(self, line: Line, trace: Line, calls: list[Line]) -> Document:
        target = str(line["target"])
        selection = trace.get("selection") or {}
        labels = line.get("pope_f1_score")
        rotation = line.get("gpt_eval_score")
        index = int(rotation["index"]) if isinstance(rotation, dict) and "index" in rotation else None
        return Document(
            doc_id=int(line["doc_id"]),
            target=sys.intern(target),
            score=_score(self.run.benchmark, line),
            labels=(_label(labels["prediction"]), _label(labels["ground_truth"])) if isinstance(labels, dict) else None,
            group=None if index is None else index % CIRCULAR,
            is_main=index is None or index < CIRCULAR,
            kind=sys.intern(_kind(line, target)),
            output_tokens=_whole(trace.get("output_tokens")),
            exit=_name(trace.get("exit")),
            readable=trace.get("readable"),
            verifications=tuple(
                Verification(_interned(one["small"]), _interned(one["large"]), one["agree"])
                for one in trace.get("answers") or ()
            ),
            calls=tuple(_cost(call) for call in calls),
            layer=_whole(selection.get("layer")),
            kept_tokens=_whole(selection.get("kept_tokens")),
            scored_tokens=_whole(selection.get("scored_tokens")),
            thought=self._thought(trace, calls),
        )

    def _thought(self, trace: Line, calls: list[Line]) -> str | None:
        if self.run.benchmark not in RULES_CAN_CHANGE or trace.get("answers"):
            return None
        thoughts = [call["text"] for call in calls if (call["side"], call["stage"]) == ("small", "think")]
        return read_answer(BENCHMARKS[self.run.benchmark], {}, thoughts[0]) if thoughts else None


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _label(text: str) -> str:
    return text if text in ("yes", "no") else "other"


def _name(text: Any) -> str | None:
    if text is not None and not isinstance(text, str):
        raise TypeError(text)
    return text


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)


def _finite(number: Any) -> float:
    """Return a number. Raises ValueError if it is nan or infinite, TypeError if it is not a number."""
    if not math.isfinite(number):
        raise ValueError(number)
    return float(number)


def _interned(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)


def _cost(call: Line) -> CallCost:
    return CallCost(
        side=sys.intern(call["side"]),  # type: ignore[arg-type]
        stage=sys.intern(call["stage"]),  # type: ignore[arg-type]
        output_tokens=int(call["output_tokens"]),
        answer_tokens=_whole(call.get("answer_tokens")),
        prompt_tokens=int(call["prompt_tokens"]),
        seconds=_seconds(call),
        cut_off=call["finish_reason"] == "length",
        started_at=None if call.get("started_at") is None else _finite(call["started_at"]),
        shared=bool(call.get("shared")),
        cached_tokens=int(call.get("cached_tokens") or 0),
        image_tokens=_whole(call.get("image_tokens")),
    )


def _seconds(call: Line) -> float | None:
    return None if call.get("shared") else _finite(call["total_s"])


def _score(benchmark: str, line: Line) -> float | None:
    """Return the score of a line, 0 to 1. None if it has none."""
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


def _kind(line: Line, target: str) -> str:
    """Return the kind of a question: the benchmark's own kinds if the line has them, else the form of the gold."""
    if "relaxed_human_split" in line:
        return "human"
    if "relaxed_augmented_split" in line:
        return "augmented"
    if isinstance(row := line.get("mmmu_acc"), dict):
        return str(row.get("subdomain", ""))
    if isinstance(row := line.get("gpt_eval_score"), dict):
        return str(row.get("category", ""))
    if "pope_accuracy" in line:
        return f"gold: {target.lower()}"
    return form_of(target)
