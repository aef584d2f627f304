"""Writes output folders as lmms-eval and mai_cascade write them, from the answers of two models to some documents."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmms_eval_mai.method.agreement import RULES
from lmms_eval_mai.method.methods import METHODS, Ask, Method, Stop, steps_of

SMALL, LARGE = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
TOKENS = {"simple": 4, "explain": 100, "think": 100, "stage2": 3, "transfer": 5, "task": 4}
"""Prompt -> the output tokens of each of its calls. A trace has its calls in this order."""
OF_SUFFIX = {"s": "simple", "e": "explain", "r": "think"}
"""First letter of the suffix of a task -> what a call with its own prompt asks. Other tasks have no suffix."""
THINKING = ("explain", "think")
Line = dict[str, Any]


@dataclass(frozen=True)
class Answers:
    """The answers to one document, as the scorer reads them. An empty one cannot be read."""

    gold: str
    small: str
    large: str
    thought: str
    transferred: str
    large_thought: str = ""
    probability: float = 1.0
    """Of short answers."""
    stage2: tuple[str, str] | None = None
    """The answers of the small and of the large model after a thinking in two stages. None: those of the thinking."""
    fields: tuple[tuple[str, Any], ...] = ()
    """More fields of the line, such as the subject of an MMMU question, and of the trace (`TRACE`)."""

    def to(self, side: str, prompt: str) -> str:
        """Return the answer of a call."""
        if prompt == "transfer":
            return self.transferred
        thought, short = (self.thought, self.small) if side == "small" else (self.large_thought, self.large)
        if prompt == "stage2" and self.stage2:
            return self.stage2[side == "large"]
        return thought if prompt in (*THINKING, "stage2") else short


@dataclass(frozen=True)
class World:
    """A benchmark with its documents: `write` writes the folder of one run."""

    benchmark: str
    documents: Sequence[Answers]
    score: Callable[[str, str], float] = lambda answer, gold: float(answer == gold)
    agree: Callable[[str, str], bool] = lambda a, b: a == b
    small: str = SMALL
    large: str = LARGE
    min_confidence: float = 0.9
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options in the traces."""

    def write(
        self, folder: Path, method: str | Method, suffix: str = "s", time: str = "20260101_000000", **more: Any
    ) -> Path:
        """Write the run of a method on the task `<benchmark>_<suffix>`; without a suffix, it is a task of one's own.
        Returns the results file."""
        return write_run(
            folder,
            f"{self.benchmark}_{suffix}".rstrip("_"),
            [self.line(doc_id, one, method, suffix) for doc_id, one in enumerate(self.documents)],
            time=time,
            method=method,
            models=self.models,
            options=self.options,
            mai={"benchmark": self.benchmark, "variant": suffix} if suffix else None,
            **more,
        )

    @property
    def models(self) -> dict[str, str]:
        return {"small": self.small, "large": self.large}

    def line(self, doc_id: int, one: Answers, method: str | Method, suffix: str) -> Line:
        """Return the line of a document, with its trace."""
        method = named(method)
        exit, answer, calls = self.walk(one, method, suffix)
        made = line(
            doc_id,
            one.gold,
            answer,
            self.score(answer, one.gold),
            calls,
            exit=exit,
            **({"min_confidence": self.min_confidence} if method.needs_threshold else {}),
            **(pope_fields(doc_id, answer, one.gold) if self.benchmark == "pope" else {}),
            **dict(one.fields),
        )
        made["token_counts"][0] |= about(method, self.models, self.options)
        return made

    def walk(self, one: Answers, method: Method, suffix: str) -> tuple[str, str, list[Line]]:
        """Return the exit of a method on a document, its answer, and its calls."""
        calls: list[Line] = []
        asked: dict[str, list[Line]] = {}
        for step in method.steps:
            if not isinstance(step, Stop):
                for ask in step if isinstance(step, tuple) else (step,):
                    of = asked[ask.of][0] if ask.of else None
                    asked[ask.name] = self.calls(one, ask, method, suffix, of)
                    calls += asked[ask.name]
                continue
            a, b = ([asked[name][-1]["parsed"] for name in step.agree]) or (None, None)
            agree = not step.agree or (a is not None and b is not None and self.agree(a, b))
            answer = asked[step.sure][-1] if step.sure else {}
            least = math.log(step.min_confidence or self.min_confidence)
            if agree and (not step.sure or (answer["parsed"] is not None and answer["answer_logprob"] >= least)):
                calls.sort(key=lambda one: ([*TOKENS].index(one["prompt"]), one["side"] == "large"))
                return step.exit, asked[step.answer][-1]["parsed"] or "", calls
        raise AssertionError(method)

    def calls(self, one: Answers, ask: Ask, method: Method, suffix: str, of: Line | None) -> list[Line]:
        """Return the call of a step, or the two of a thinking in two stages."""
        own = OF_SUFFIX.get(suffix[:1], "task")
        think = own if own in THINKING else "explain" if self.options.get("think") == "E" else "think"
        prompt = {"think": think, "task": own}.get(ask.prompt, ask.prompt)
        prompt = "task" if prompt == "simple" and own == "task" else prompt
        answer = one.to(ask.side, prompt)
        if prompt in THINKING:
            thinking = call(ask.side, prompt, f"Thinking. [[{answer}]]", parsed=answer or None)
            is_used = any(ask.name in (stop.answer, *stop.agree) for stop in method.stops)
            second = call(ask.side, "stage2", one.to(ask.side, "stage2"), of=f"{ask.side}.{prompt}")
            return [thinking, second] if suffix.endswith("s2") and is_used else [thinking]
        more: Line = {"of": f"{of['side']}.{of['prompt']}"} if of else {}
        if prompt in ("simple", "task"):
            more["answer_logprob"] = math.log(one.probability)
        return [call(ask.side, prompt, answer, **more)]


def named(method: str | Method) -> Method:
    return METHODS[method] if isinstance(method, str) else method


def about(method: Method, models: Mapping[str, str], options: Mapping[str, Any]) -> Line:
    """Return the fields of a trace that are those of its run."""
    return {
        "method": method.name,
        "steps": steps_of(method),
        "options": dict(options),
        **{side: models.get(side, side) for side in method.sides},
        "engines": {side: "scripted" for side in method.sides},
        "rules": RULES,
    }


def call(side: str, prompt: str, text: str, **more: Any) -> Line:
    return {
        "side": side,
        "prompt": prompt,
        "text": text,
        "parsed": text or None,
        "finish_reason": "stop",
        "prompt_tokens": 300,
        "cached_tokens": 0,
        "output_tokens": TOKENS[prompt],
        "answer_tokens": 1,
        "queued_s": None,
        "ttft_s": None,
        "total_s": 0.25,
        **more,
    }


TRACE = ("exit", "readable", "parsed", "min_confidence", "category", "images", "chose_threshold")
"""Fields of a trace."""


def line(doc_id: int, target: str, answer: str, score: float | None, calls: Sequence[Line] = (), **fields: Any) -> Line:
    """Return a line of a samples file. With `exit`, it has a trace, which `write_run` completes."""
    trace = {"readable": bool(answer), "parsed": answer or None}
    trace |= {name: fields.pop(name) for name in TRACE if name in fields}
    tokens = {"input_tokens": 300, "output_tokens": sum(one["output_tokens"] for one in calls)}
    counts = {**tokens, **trace, "calls": list(calls)} if "exit" in trace else None
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
    method: str | Method | None = None,
    models: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    mai: dict[str, str] | None = None,
    model: str = "mai_cascade",
    model_args: str = "pair=pair.yaml",
    wall_s: float | None = 9.0,
    number: int | None = None,
    metrics: Sequence[str] = ("score",),
) -> Path:
    """Write the files of one run with one task. Returns the results file. Without `method`, the run is not ours.
    `wall_s`: None: lmms-eval has no time. `number`: documents that lmms-eval evaluated. `metrics`: those of the
    task."""
    lines = list(lines)
    of_run = about(named(method), models or {}, options or {}) if method else {}
    for counts in (one["token_counts"][0] for one in lines if method):
        if counts is not None:
            counts |= of_run | counts
    begins = 0.0  # the first call begins at 0, and the others end at wall_s
    for one in [one for line in lines for counts in line["token_counts"] if counts for one in counts.get("calls", ())]:
        one.setdefault("started_at", begins)
        begins = (wall_s or 0.0) - 0.25
    folder.mkdir(parents=True, exist_ok=True)
    number = len(lines) if number is None else number
    results = {
        "results": {task: {"alias": task}},
        "group_subtasks": {task: []},
        "configs": {
            task: {
                "task": task,
                "metric_list": [{"metric": name, "aggregation": "mean"} for name in metrics],
                "metadata": {"version": 0.1, **({"mai": mai} if mai else {})},
            }
        },
        "n-samples": {task: {"original": number, "effective": number}},
        "config": {"model": model, "model_args": model_args, "gen_kwargs": ""},
        **({} if wall_s is None else {"throughput": {"total_elapsed_time": wall_s}}),
    }
    file = folder / f"{time}_results.json"
    file.write_text(json.dumps(results))
    (folder / f"{time}_samples_{task}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
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
