"""One pair of models for all tests: its answers to a document, as scripted engines give them and as their scripts."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import SIDES, Prompt, Side
from lmms_eval_mai.engines.scripted import Answer

Record = dict[str, Any]
Records = dict[Side, list[Record]]
"""Side -> the records of its script."""
EXITS = ("agree_short", "agree_think", "transfer")
TOKENS = {"simple": 4, "task": 4, "explain": 100, "think": 100, "stage2": 3, "transfer": 5}
"""Prompt -> the output tokens of each of its calls."""


@dataclass(frozen=True)
class Answers:
    """The answers to one document, as the scorer reads them. An empty one cannot be read."""

    gold: str
    small: str
    large: str
    thought: str
    transferred: str
    large_thought: str = ""
    probability: float | None = 1.0
    """Of short answers. None: the models give none."""
    stage2: tuple[str, str] | None = None
    """The answers of the small and of the large model after a thinking in two stages. None: those of the thinking."""
    images: tuple[str, ...] = ()
    category: str | None = None
    fields: tuple[tuple[str, Any], ...] = ()
    """More fields of the line, such as the subject of an MMMU question."""
    thinking: str = "Thinking."

    @property
    def logprob(self) -> float | None:
        return None if self.probability is None else math.log(self.probability)

    def text(self, side: Side, prompt: str) -> str:
        is_large = side == "large"
        thought = self.large_thought if is_large else self.thought
        if prompt in ("explain", "think"):
            return f"{self.thinking} [[{thought}]]"
        if prompt == "stage2":
            return self.stage2[is_large] if self.stage2 else thought
        return self.transferred if prompt == "transfer" else self.large if is_large else self.small

    def to(self, prompt: Prompt) -> Answer:
        """Return the answer of a scripted engine."""
        counts = {"output_tokens": TOKENS[prompt.key.prompt], "answer_tokens": 1, "seconds": 0.25}
        text = self.text(prompt.key.side, prompt.key.prompt)
        return Answer(text, prompt_tokens=300, answer_logprob=self.logprob, **counts)  # type: ignore[arg-type]


def exit_of(doc_id: int) -> str:
    """Return the exit at which a document of `in_turn` leaves MAI."""
    return EXITS[doc_id % 3]


def in_turn(doc_id: int, right: str, wrong: str, two_stage: bool = False) -> Answers:
    """Return answers whose documents leave MAI at its exits in turn, each with the right answer. `two_stage`: the text
    of a thinking has another answer than its second stage."""
    exit = exit_of(doc_id)
    thought = right if exit == "agree_think" else wrong
    small, large = right if exit == "agree_short" else wrong, "perhaps" if exit == "transfer" else right
    in_thinking = "0" if two_stage else thought
    made = Answers(right, small, large, in_thinking, f"[[{right}]]", stage2=(thought, ""), probability=None)
    return dataclasses.replace(made, thinking=f"I see {doc_id}.")


def record(task: str, doc_id: int, prompt: str, text: str, **more: Any) -> Record:
    tokens = 50 if prompt in ("explain", "think") else 5
    counts = {"prompt_tokens": 100, "cached_tokens": 32, "output_tokens": tokens, "seconds": 0.01}
    return {"task": task, "doc_id": doc_id, "prompt": prompt, "text": text, **counts, **more}


def records(task: str, answers: Sequence[Answers], **more: Any) -> Records:
    """Return the records of both models. `more`: further fields of all of them."""
    made: Records = {side: [] for side in SIDES}
    for side, (doc_id, one), prompt in itertools.product(SIDES, enumerate(answers), TOKENS):
        fields = {"answer_logprob": one.logprob, **more}
        made[side].append(record(task, doc_id, prompt, one.text(side, prompt), **fields))
    return made


def written(folder: Path, made: Records) -> dict[str, Any]:
    """Write the scripts of both models. Returns their model arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, of_side in made.items():
        (folder / f"{side}.jsonl").write_text("\n".join(map(json.dumps, of_side)))
    return {"engine": "scripted", **{side: str(folder / f"{side}.jsonl") for side in made}}


def pope_scripts(folder: Path, *tasks: str, rows: int = 12, **more: Any) -> dict[str, Any]:
    """Write scripts in which the final answer to each document of POPE is right. `more`: as for `records`."""
    made: Records = {side: [] for side in SIDES}
    golds = gold_of("POPE", "test")[:rows]
    for task in tasks:
        answers = [
            in_turn(doc_id, gold.title(), "No" if gold == "yes" else "Yes", task.endswith("_s2"))
            for doc_id, gold in enumerate(golds)
        ]
        for side, of_task in records(task, answers, **more).items():
            made[side] += of_task
    return written(folder, made)


def gold_of(name: str, split: str) -> list[str]:
    from datasets import load_dataset

    return list(load_dataset(f"lmms-lab-encoder/{name}", split=split)["answer"])


def counts(results: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [one["token_counts"][0] for one in sorted(results["samples"][task], key=lambda s: s["doc_id"])]
