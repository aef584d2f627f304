"""Published answers of real models, with the documents that lmms-eval's scorers need."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.documents import MMMU_OPEN

Record = dict[str, Any]
REPLAYS = {
    "pope": ("pope__llava-v1.5-7b_greedy", "pope__llava-v1.5-13b"),
    "mmmu_val": ("mmmu_val__llava1.5_13b", "mmmu_val__qwen_vl"),
    "mmbench_en_dev": ("mmbench__llava-v1.5-13b",),
    "chartqa": ("chartqa__qwen2.5-vl-7b",),
}
"""Benchmark -> its files. MMMU's files have the same documents in the same order."""


def replay(shared: Path, name: str) -> Iterator[Record]:
    with (shared / "data" / "replay" / f"{name}.jsonl").open() as lines:
        yield from map(json.loads, lines)


def mmmu_doc(record: Record) -> Record:
    if record["question_type"] == "short-answer":
        return MMMU_OPEN
    return {"question_type": "multiple-choice", "options": str(list(record["options"].values()))}


def scored_doc(benchmark: str, record: Record) -> Record:
    """Return the fields of the record's document that the scorer of the benchmark reads."""
    gold = {"answer": record["gold"]}
    if benchmark == "mmmu_val":
        return {**mmmu_doc(record), "id": record["qid"], **gold}
    if benchmark == "mmbench_en_dev":
        columns = {letter: record["options"].get(letter, "nan") for letter in "ABCD"}
        names = ("question", "hint", "source", "split", "category", "L2-category")
        return {"index": int(record["qid"]), **dict.fromkeys(names, ""), **columns, **gold}
    return {"question_id": record["qid"], "type": record.get("type", ""), **gold}
