"""Scripts in which the documents leave at the three exits in turn: for any questions, and for those of POPE."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
FORCED_EXITS = ("agree_short", "agree_think", "transfer")


def record(task: str, doc_id: int, prompt: str, text: str, **more: Any) -> Record:
    counts = {"prompt_tokens": 100, "cached_tokens": 32, "output_tokens": 5, "seconds": 0.01}
    return {"task": task, "doc_id": doc_id, "prompt": prompt, "text": text, **counts, **more}


def exit_of(doc_id: int) -> str:
    """Return the exit that the scripts force for a document."""
    return FORCED_EXITS[doc_id % 3]


def records(task: str, answers: Sequence[tuple[str, str]], **more: Any) -> tuple[list[Record], list[Record]]:
    """Return the records of the small and of the large model. Document i has exit `exit_of(i)`. `answers`: the final
    answer to each document, and another one. `more`: further fields of all records."""
    small, large = [], []
    for doc_id, (right, wrong) in enumerate(answers):
        exit, two_stage = exit_of(doc_id), task.endswith("_s2")
        short, thought = right if exit == "agree_short" else wrong, right if exit == "agree_think" else wrong
        thinking = f"I see {doc_id}. [[{0 if two_stage else thought}]]"
        small.append(record(task, doc_id, "simple", f"[[{short}]]", **more))
        small.append(record(task, doc_id, "task", f"[[{short}]]", **more))
        small.append(record(task, doc_id, "think", thinking, **{"output_tokens": 50, **more}))
        small.append(record(task, doc_id, "stage2", thought, **more))
        large.append(record(task, doc_id, "simple", f"[[{'perhaps' if exit == 'transfer' else right}]]", **more))
        large.append(record(task, doc_id, "task", f"[[{right}]]", **more))
        large.append(record(task, doc_id, "transfer", f"[[{right}]]", **more))
    return small, large


Write = Callable[[str, Iterable[Record]], Path]


def pope_scripts(write: Write, *tasks: str, rows: int = 12, **more: Any) -> dict[str, str]:
    """Write scripts of both models in which the final answer to each document is right. `more`: as for `records`."""
    answers = [(gold.title(), "No" if gold == "yes" else "Yes") for gold in gold_of("POPE", "test")[:rows]]
    sides = zip(*(records(task, answers, **more) for task in tasks), strict=True)
    paths = (write(side, itertools.chain(*found)) for side, found in zip(("small", "large"), sides, strict=True))
    return {"engine": "scripted", **dict(zip(("small", "large"), map(str, paths), strict=True))}


def gold_of(name: str, split: str) -> list[str]:
    from datasets import load_dataset

    return list(load_dataset(f"lmms-lab-encoder/{name}", split=split)["answer"])


def counts(results: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [one["token_counts"][0] for one in sorted(results["samples"][task], key=lambda s: s["doc_id"])]
