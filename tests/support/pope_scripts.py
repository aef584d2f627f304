"""Scripts of POPE answers that force the exit of every document."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets import load_dataset

Record = dict[str, Any]
FORCED_EXITS = ("agree_short", "agree_think", "transfer")


def record(task: str, doc_id: int, stage: str, text: str, **more: Any) -> Record:
    counts = {"prompt_tokens": 100, "cached_tokens": 32, "output_tokens": 5, "seconds": 0.01}
    return {"task": task, "doc_id": doc_id, "stage": stage, "text": text, **counts, **more}


def exit_of(doc_id: int) -> str:
    """Return the exit that `pope_scripts` forces for a document."""
    return FORCED_EXITS[doc_id % 3]


def pope_scripts(write: Callable[[str, Iterable[Record]], Path], *tasks: str, rows: int = 12) -> dict[str, str]:
    """Write scripts of both models in which document i has exit `exit_of(i)` and the final answer is right."""
    small, large = [], []
    for task, (doc_id, gold) in itertools.product(tasks, enumerate(gold_of("POPE", "test")[:rows])):
        right, wrong = f"[[{gold.title()}]]", "[[No]]" if gold == "yes" else "[[Yes]]"
        exit, two_stage = exit_of(doc_id), task.endswith("_s2")
        small.append(record(task, doc_id, "short", right if exit == "agree_short" else wrong))
        thought = right if exit == "agree_think" else wrong
        small.append(
            record(task, doc_id, "think", "Thinking. [[0]]" if two_stage else f"Thinking. {thought}", output_tokens=50)
        )
        if two_stage:
            small.append(record(task, doc_id, "stage2", thought.strip("[]")))
        large.append(record(task, doc_id, "short", right if exit != "transfer" else "[[perhaps]]"))
        large.append(record(task, doc_id, "transfer", right))
    return {"engine": "scripted", "small": str(write("small", small)), "large": str(write("large", large))}


def gold_of(name: str, split: str) -> list[str]:
    return list(load_dataset(f"lmms-lab-encoder/{name}", split=split)["answer"])


def counts(results: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [one["token_counts"][0] for one in sorted(results["samples"][task], key=lambda s: s["doc_id"])]
