"""Gold answers for `calibrate`, only where two answers differ: elsewhere both have the same score, whatever it is.

`write` lists documents that need one, a line of JSON for each: the document, its question, the different answers and
`"gold": null`. A person writes the right answer there; for InfoVQA and traces also a list of them. `read` reads the
files again.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lmms_eval_mai.analysis.runs.folders import Run, records
from lmms_eval_mai.analysis.runs.replay import CallFrames
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.benchmarks import BENCHMARKS, benchmark_of, golds_of

Labels = dict[tuple[str, int], str]
"""Benchmark and document -> the gold answer of a person, in the form in which lmms-eval logs it."""


def scored(labels: Labels, run: Run, frames: CallFrames) -> CallFrames:
    """Return the calls with the scores of their answers: those of documents without a label are all 0."""
    golds = {doc_id: labels.get((run.benchmark, doc_id)) for doc_id in run.samples.index}
    return {
        name: frame.assign(score=[_score(run.benchmark, text, golds[doc_id]) for doc_id, text in frame.parsed.items()])
        for name, frame in frames.items()
    }


def write(file: Path, differing: Iterable[tuple[Run, pd.DataFrame]]) -> int:
    """Write documents whose answers differ, and return how many they are. `differing`: a run of each benchmark, and a
    column for each answer to these documents. Raises `ArgumentError`."""
    lines = []
    for run, answers in differing:
        for record in records(run):
            doc_id = record.row["doc_id"]
            if doc_id in answers.index:
                texts = sorted({text for text in answers.loc[doc_id] if isinstance(text, str)})
                document = {"benchmark": run.benchmark, "doc_id": doc_id, "question": record.question}
                lines.append(json.dumps({**document, "answers": texts, "gold": None}, ensure_ascii=False) + "\n")
    try:
        file.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"--to_label {file} cannot be written ({error.strerror}).") from None
    return len(lines)


def read(files: Iterable[Path]) -> Labels:
    """Read the files that a person has completed. Raises `ArgumentError`."""
    return {key: gold for file in files for key, gold in _read(file).items()}


def _read(file: Path) -> Labels:
    try:
        # A question may have U+2028 and the like, at which splitlines() splits too.
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
        gold = {(line["benchmark"], int(line["doc_id"])): line["gold"] for line in lines if line["gold"] is not None}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"--labels {file} cannot be read ({error}). --to_label writes such a file.") from None
    for (benchmark, doc_id), value in gold.items():
        if isinstance(value, list) and benchmark in BENCHMARKS and benchmark != "infovqa_val":
            raise ArgumentError(
                f"--labels {file}: the gold answer to document {doc_id} of {benchmark} is a list. Its scorer takes one "
                "text."
            )
    return {key: str(value) for key, value in gold.items()}


def _score(benchmark: str, answer: str | None, gold: str | None) -> float:
    if gold is None or not isinstance(answer, str):
        return 0.0
    score = benchmark_of(benchmark).score_of(answer, gold)
    if score is not None:
        return score
    return float(answer.strip().lower() in [text.strip().lower() for text in golds_of(gold)])
