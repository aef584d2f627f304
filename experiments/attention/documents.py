"""The documents of a task, the thinking that earlier runs of lmms-eval logged, and the scores of answers."""

import argparse
import inspect
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmms_eval_mai import task_dir
from lmms_eval_mai.contract import PROMPTS
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import extract_answer, without_answer
from lmms_eval_mai.method.benchmarks import benchmark_of

Chat = list[dict[str, Any]]
"""Messages for a Hugging Face processor, with decoded images."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that both scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the large model: a Hugging Face name, or a path")
    parser.add_argument("--task", required=True, help="an E or R task of this package, such as pope_r")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N documents with thinking (default: all)")
    parser.add_argument("--delta", type=float, default=0.8, help="the share of the attention that is kept")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument("--dtype", default="auto", help="auto (that of the checkpoint), float32, ...")
    return parser


class Documents:
    """The documents of one of this package's tasks."""

    def __init__(self, name: str) -> None:
        from lmms_eval.tasks import TaskManager, get_task_dict

        self.name = name
        manager = TaskManager(include_path=str(task_dir()), include_defaults=False)
        self._task = get_task_dict([name], manager, task_type="chat")[name]
        labels = self._task.config.metadata["mai"]
        self._variant = labels["variant"].upper()
        self._transfer_prompt = benchmark_of(labels["benchmark"]).transfer_prompt
        if self._variant not in ("E", "R"):
            raise SystemExit(f"{name} does not ask for thinking. Give an _e or _r task.")

    def thinkings(self, folder: Path, side: str) -> dict[int, str]:
        """Return what is transferred of the thinking of one model, by number of the document. `side`: small or large.
        `folder`: lmms-eval's output folder of a run with --log_samples."""
        found = {}
        for file in sorted(folder.rglob(f"*_samples_{self.name}.jsonl")):
            for line in file.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                for call in sample["token_counts"][0]["calls"]:
                    is_thinking = PROMPTS[call["prompt"]].thinks and call["side"] == side
                    if is_thinking and call["text"].strip():
                        found[sample["doc_id"]] = call["text"]
        if not found:
            raise SystemExit(f"{folder} has no thinking of the {side} model for {self.name}. Was --log_samples given?")
        is_cut = prompts.TRANSFER_ANSWER[self._transfer_prompt] == "cut"
        return {number: without_answer(text) if is_cut else text for number, text in found.items()}

    def _question(self, number: int) -> tuple[list[Any], prompts.AnswerForm]:
        """Return images and question of a document, and the form of its answer."""
        (message,) = self._task.doc_to_messages(self._task.eval_docs[number])
        *blocks, instruction = message["content"]
        is_word = instruction["text"] == prompts.instruction(self._variant, "word")
        return blocks, "word" if is_word else "letter"

    def __len__(self) -> int:
        return len(self._task.eval_docs)

    def own(self, number: int) -> Chat:
        """Return the prompt of a document as the task itself has it, which asks for thinking."""
        (message,) = self._task.doc_to_messages(self._task.eval_docs[number])
        return _chat(message["content"], "")

    def simple(self, number: int) -> Chat:
        """Return the Simple prompt of a document (Eq. 5)."""
        blocks, form = self._question(number)
        return _chat(blocks, prompts.instruction("S", form))

    def transfer(self, number: int, reference: str) -> Chat:
        """Return the Reason Transfer prompt of a document (Eq. 9 and 13)."""
        blocks, form = self._question(number)
        return _chat(blocks, prompts.transfer(self._transfer_prompt, reference, form))

    def after_thinking(self, number: int) -> str:
        """Return the text after the thinking in the Reason Transfer prompt."""
        _, form = self._question(number)
        return prompts.transfer_parts(self._transfer_prompt, form)[1]

    def results(self, number: int, text: str) -> dict[str, Any]:
        """Return what the task's scorer makes of an answer."""
        found: dict[str, Any] = self._task.process_results(self._task.eval_docs[number], [extract_answer(text)])
        return found

    def metrics(self, results: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return the task's metrics over documents, such as the F1 of POPE. Those that write files are left out."""
        found = {}
        for name, aggregate in self._task.aggregation().items():
            if "args" not in inspect.signature(aggregate).parameters:
                found[name] = float(aggregate([result[name] for result in results]))
        return found


def _chat(blocks: Sequence[dict[str, Any]], text: str) -> Chat:
    content = [{"type": "image", "image": block["url"]} for block in blocks if block["type"] == "image"]
    question = "".join(block["text"] for block in blocks if block["type"] == "text")
    return [{"role": "user", "content": [*content, {"type": "text", "text": question + text}]}]


def score_of(results: dict[str, Any]) -> float:
    """Return the score of one answer: the first metric that is a number, or has a `score`."""
    for value in results.values():
        number = value.get("score") if isinstance(value, dict) else value
        if isinstance(number, int | float | np.number):
            return float(number)
    raise SystemExit("The scorer of this task returns no number per document. Choose another task.")


def mean(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean over documents, and half the width of its 95% interval (1.96 standard errors)."""
    numbers = np.asarray(values, dtype=float)
    if len(numbers) < 2:
        return float(numbers.mean()), float("nan")
    return float(numbers.mean()), float(1.96 * numbers.std(ddof=1) / len(numbers) ** 0.5)


def random_positions(tokens: int, kept: int, seed: object) -> list[int]:
    """Return `kept` of the positions 0..tokens-1 in ascending order. With the same seed, more positions have the fewer
    ones among them, so two layers differ only by the number of tokens."""
    positions = list(range(tokens))
    random.Random(str(seed)).shuffle(positions)
    return sorted(positions[:kept])
