"""Writes output folders as lmms-eval and mai_cascade write them, from the answers of two models to some documents."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL, LARGE = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
TOKENS = {"short": 4, "think": 100, "stage2": 3, "transfer": 5}
"""Stage -> the output tokens of each of its calls."""
Line = dict[str, Any]
Given = tuple[str, str, list[tuple[str, str]], list[Line]]
"""Exit, final answer, compared answers and calls of a document."""


@dataclass(frozen=True)
class Answers:
    """The answers to one document, as the scorer reads them."""

    gold: str
    small: str
    large: str
    thought: str
    transferred: str
    large_thought: str = ""
    probability: float = 1.0
    """Of the large model's short answer."""
    fields: tuple[tuple[str, Any], ...] = ()
    """More fields of the line, such as the subject of an MMMU question, and of the trace (`TRACE`)."""


@dataclass(frozen=True)
class World:
    """A benchmark with its documents: `write` writes the folder of one run."""

    benchmark: str
    documents: Sequence[Answers]
    score: Callable[[str, str], float] = lambda answer, gold: float(answer == gold)
    agree: Callable[[str, str], bool] = lambda a, b: a == b
    small: str = SMALL
    large: str = LARGE
    verify: str = "agreement"
    min_confidence: float = 0.0

    def write(self, folder: Path, mode: str, suffix: str = "s", time: str = "20260101_000000", **options: Any) -> Path:
        """Write the run of a mode on the task `<benchmark>_<suffix>`. Returns the results file."""
        task = f"{self.benchmark}_{suffix}"
        lines = [self.line(doc_id, one, mode, suffix) for doc_id, one in enumerate(self.documents)]
        return write_run(
            folder,
            task,
            lines,
            time=time,
            mode=mode,
            engines={"small": self.small, "large": self.large},
            mai={"benchmark": self.benchmark, "variant": suffix},
            **{"of_run": self.checks(), **options},
        )

    def checks(self) -> Line:
        """Return the figures of a first check that is not the paper's."""
        check = {"verify": self.verify, "min_confidence": self.min_confidence, "by_benchmark": {}}
        return {} if self.verify == "agreement" else {"first_check": check}

    def line(self, doc_id: int, one: Answers, mode: str, suffix: str) -> Line:
        """Return the line of a document."""
        exit, answer, compared, calls = getattr(self, f"_{mode}")(one, suffix)
        verifications = [{"small": a or None, "large": b or None, "agree": self._agrees(a, b)} for a, b in compared]
        return line(
            doc_id,
            one.gold,
            answer,
            self.score(answer, one.gold),
            exit=exit,
            readable=bool(answer),
            **({"parsed": answer} if answer else {}),
            answers=verifications,
            calls=calls,
            **({"thought": one.thought or None} if mode == "transfer" else {}),
            **(pope_fields(doc_id, answer, one.gold) if self.benchmark == "pope" else {}),
            **dict(one.fields),
        )

    def _agrees(self, a: str, b: str) -> bool:
        return bool(a and b and self.agree(a, b))

    def _cascade(self, one: Answers, suffix: str) -> Given:
        logprob = math.log(one.probability)
        calls, compared = [call("large", "short", one.large, answer_logprob=logprob)], []
        passed = self.verify == "agreement" or (bool(one.large) and one.probability >= self.min_confidence)
        if self.verify != "confidence":
            calls, compared = [call("small", "short", one.small), *calls], [(one.small, one.large)]
            passed = passed and self._agrees(one.small, one.large)
        if passed:
            return "confident" if self.verify == "confidence" else "agree_short", one.large, compared, calls
        calls += thinking("small", one.thought, suffix)
        compared.append((one.thought, one.large))
        if self._agrees(one.thought, one.large):
            return "agree_think", one.large, compared, calls
        return "transfer", one.transferred, compared, [*calls, call("large", "transfer", one.transferred)]

    def _transfer(self, one: Answers, suffix: str) -> Given:
        calls = [*thinking("small", one.thought, "r"), call("large", "transfer", one.transferred)]
        return "transfer", one.transferred, [], calls

    def _small(self, one: Answers, suffix: str) -> Given:
        return self._alone("small", one.small, one.thought, suffix)

    def _large(self, one: Answers, suffix: str) -> Given:
        if suffix == "s":
            return "large", one.large, [], [call("large", "short", one.large, answer_logprob=math.log(one.probability))]
        return self._alone("large", one.large, one.large_thought, suffix)

    def _alone(self, side: str, short: str, thought: str, suffix: str) -> Given:
        if suffix == "s":
            return side, short, [], [call(side, "short", short)]
        return side, thought, [], thinking(side, thought, suffix)


def thinking(side: str, thought: str, suffix: str) -> list[Line]:
    """Return the calls of a model that thinks, in one stage or in two."""
    calls = [call(side, "think", f"Thinking. [[{thought}]]")]
    return [*calls, call(side, "stage2", thought)] if suffix.endswith("s2") else calls


def call(side: str, stage: str, text: str, **more: Any) -> Line:
    return {
        "side": side,
        "stage": stage,
        "text": text,
        "finish_reason": "stop",
        "prompt_tokens": 300,
        "cached_tokens": 0,
        "output_tokens": TOKENS[stage],
        "answer_tokens": 1,
        "queued_s": None,
        "ttft_s": None,
        "total_s": 0.25,
        **more,
    }


TRACE = ("exit", "readable", "answers", "parsed", "category", "images", "thought")
"""Fields of a trace."""


def line(doc_id: int, target: str, answer: str, score: float | None, calls: Sequence[Line] = (), **fields: Any) -> Line:
    """Return a line of a samples file. With `exit`, it has a trace."""
    trace = {name: fields.pop(name) for name in TRACE if name in fields}
    tokens = {"input_tokens": 300, "output_tokens": sum(one["output_tokens"] for one in calls)}
    counts = {**tokens, **trace, "calls": list(calls)} if trace else None
    found = {"doc_id": doc_id, "target": target, "filtered_resps": answer, "token_counts": [counts], "doc_hash": "0"}
    return found | ({} if score is None else {"score": score}) | {"input": "A question?"} | fields


def pope_fields(doc_id: int, answer: str, gold: str) -> Line:
    scored = {"question_id": str(doc_id), "score": float(answer == gold), "prediction": answer, "ground_truth": gold}
    return {name: scored for name in ("pope_accuracy", "pope_f1_score")}


def write_run(
    folder: Path,
    task: str,
    lines: Iterable[Line],
    *,
    time: str = "20260101_000000",
    mode: str | None = None,
    engines: dict[str, str] | None = None,
    mai: dict[str, str] | None = None,
    model: str = "mai_cascade",
    model_args: str = "",
    wall_s: float = 9.0,
    of_run: Line | None = None,
    **of_task: Any,
) -> Path:
    """Write the files of one run with one task. Returns the results file. Without `mode`, the run is not ours.
    `of_run`: more figures of the run. Other options are figures of the task."""
    lines = list(lines)
    folder.mkdir(parents=True, exist_ok=True)
    number = of_task.pop("number", len(lines))
    results = {
        "results": {task: {"alias": task}},
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "metadata": {"version": 0.1, **({"mai": mai} if mai else {})}}},
        "n-samples": {task: {"original": number, "effective": number}},
        "config": {"model": model, "model_args": f"mode={mode},{model_args}" if mode else model_args, "gen_kwargs": ""},
        "throughput": {"total_elapsed_time": wall_s},
    }
    file = folder / f"{time}_results.json"
    file.write_text(json.dumps(results))
    (folder / f"{time}_samples_{task}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    if mode:
        sides = [mode] if mode in ("small", "large") else ["small", "large"]
        figures = {
            "format": 1,
            "mode": mode,
            "engines": {side: {"engine": "vllm", "model": (engines or {}).get(side, side)} for side in sides},
            "tasks": {task: {"samples": len(lines), "not_answered": 0, "wall_s": wall_s, **of_task}},
        }
        (folder / f"{time}_mai_cascade.json").write_text(json.dumps(figures | (of_run or {})))
    return file


POPE = World(
    "pope",
    [
        Answers("yes", "yes", "yes", "no", "yes"),
        Answers("no", "yes", "no", "no", "no"),
        Answers("yes", "yes", "no", "yes", "yes"),
        Answers("no", "", "no", "yes", "yes"),
    ],
)
"""Four documents of POPE: one for each exit, and one whose small model's short answer is empty."""
