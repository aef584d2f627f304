"""Writes output folders as lmms-eval and mai_cascade write them. The package's own run answers the documents, on two
scripted engines; nothing here knows the steps of a method or the fields of a trace."""

import asyncio
import dataclasses
import functools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.documents import DOCS
from support.pair import Answers
from support.samples import sample, started_pair

from lmms_eval_mai.contract import SIDES, Image, Message
from lmms_eval_mai.engines.scripted import ScriptedEngine, ScriptedOptions
from lmms_eval_mai.method.agreement import AGREEMENT_OPTIONS, AgreementRules
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import METHODS, Method, Thresholds
from lmms_eval_mai.method.prompts import VARIANTS
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Settings, Trace, trace_record

SMALL, LARGE = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
Line = dict[str, Any]


@dataclass(frozen=True, eq=False)
class World:
    """A benchmark with its documents: `write` writes the folder of one run."""

    benchmark: str
    documents: Sequence[Answers]
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
        task, mai = f"{self.benchmark}_{suffix}".rstrip("_"), {"benchmark": self.benchmark, "variant": suffix}
        return write_run(folder, task, self.lines(method, suffix), time=time, mai=mai if suffix else None, **more)

    def lines(self, method: str | Method, suffix: str = "s") -> list[Line]:
        """Return the line of each document, with its trace."""
        made = []
        for doc_id, (one, trace) in enumerate(zip(self.documents, self.traces(method, suffix), strict=True)):
            parsed = trace.answer.parsed
            score = benchmark_of(self.benchmark).score_of(parsed, one.gold)
            found = line(doc_id, one.gold, trace.text, float(parsed == one.gold) if score is None else score)
            tokens = {"input_tokens": 300, "output_tokens": sum(call.output_tokens for call in trace.calls)}
            found["token_counts"] = [tokens | trace_record(trace)]
            pope = {"prediction": trace.text, "ground_truth": one.gold, "score": score, "question_id": str(doc_id)}
            made.append(found | ({"pope_f1_score": pope} if self.benchmark == "pope" else {}) | dict(one.fields))
        return made

    @functools.cache  # noqa: B019 - several tests write the same runs
    def traces(self, method: str | Method, suffix: str = "s") -> list[Trace]:
        """Run a method on all documents, once."""
        made = self._run(METHODS[method] if isinstance(method, str) else method, suffix)
        with ThreadPoolExecutor(1) as thread:  # Playwright's browser runs an event loop in the thread of the tests
            return thread.submit(asyncio.run, made).result()

    async def _run(self, method: Method, suffix: str) -> list[Trace]:
        variant, two_stage = VARIANTS.get(suffix, (None, False))
        models = {side: getattr(self, side) for side in method.sides}
        rules = {name: self.options[name] for name in AGREEMENT_OPTIONS if name in self.options}
        options = ScriptedOptions(time_scale=0)
        pair = await started_pair(
            *(
                ScriptedEngine(side, lambda prompt: self.documents[prompt.key.doc_id].to(prompt), options)
                for side in models
            ),
            think=self.options.get("think", "R"),
            rules=AgreementRules(**rules),
            thresholds=Thresholds(self.min_confidence),
            transfer_answer=self.options.get("transfer_answer"),
        )
        settings = Settings(method, self.options, engines=dict.fromkeys(models, "scripted"), **models)
        pair, found = dataclasses.replace(pair, settings=settings), []
        for doc_id, one in enumerate(self.documents):
            doc = DOCS.get(self.benchmark, [{}])[0] | {"category": one.category}
            made = sample(self.benchmark, variant, two_stage=two_stage, doc_id=doc_id, doc=doc)
            question = (*(Image(None, name) for name in one.images), "A question?")  # type: ignore[arg-type]
            found.append(await run_sample(dataclasses.replace(made, question=(Message("user", question),)), pair))
        return found


def line(doc_id: int, target: str, answer: str, score: float | None, **fields: Any) -> Line:
    """Return a line of a samples file without a trace."""
    found = {"doc_id": doc_id, "target": target, "filtered_resps": answer, "token_counts": [None], "doc_hash": "0"}
    return found | ({} if score is None else {"score": score}) | {"input": "A question?"} | fields


def write_run(
    folder: Path,
    task: str,
    lines: Iterable[Line],
    *,
    time: str = "20260101_000000",
    mai: dict[str, str] | None = None,
    model: str = "mai_cascade",
    model_args: str = "pair=pair.yaml",
    wall_s: float | None = 9.0,
    number: int | None = None,
    metrics: Sequence[str] = ("score",),
) -> Path:
    """Write the files of one run with one task. Returns the results file. `wall_s`: None: lmms-eval has no time.
    `number`: documents that lmms-eval evaluated. `metrics`: those of the task."""
    lines = list(lines)
    begins = 0.0  # the first call begins at 0, and the others end at wall_s
    for one in [one for line in lines for counts in line["token_counts"] if counts for one in counts.get("calls", ())]:
        one["started_at"] = begins
        begins = (wall_s or 0.0) - 0.25
    folder.mkdir(parents=True, exist_ok=True)
    number = len(lines) if number is None else number
    metadata = {"version": 0.1, **({"mai": mai} if mai else {})}
    results = {
        "results": {task: {"alias": task}},
        "group_subtasks": {task: []},
        "configs": {task: {"metric_list": [{"metric": name} for name in metrics], "metadata": metadata}},
        "n-samples": {task: {"original": number, "effective": number}},
        "config": {"model": model, "model_args": model_args, "gen_kwargs": ""},
        **({} if wall_s is None else {"throughput": {"total_elapsed_time": wall_s}}),
    }
    file = folder / f"{time}_results.json"
    file.write_text(json.dumps(results))
    (folder / f"{time}_samples_{task}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return file


def edit(folder: Path, change: Callable[[Line, int], Any], files: str = "*") -> None:
    """Change each line of the samples files of this pattern. `change` gets a line and its number."""
    for file in folder.rglob(f"{files}_samples_*"):
        lines = [json.loads(text) for text in file.read_text().splitlines()]
        for number, one in enumerate(lines):
            change(one, number)
        file.write_text("".join(json.dumps(one) + "\n" for one in lines))


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


def shapes_world(rates: Sequence[float], seed: int, number: int) -> World:
    """Return questions whose answers are right at these rates: small and large S, small R, the transfer, large R."""
    chance = random.Random(seed)

    def answers() -> Answers:
        gold, *others = (chance.choice(["red", "blue", "green"]) for _ in range(6))
        right = (gold if chance.random() < rate else other for rate, other in zip(rates, others, strict=True))
        return dataclasses.replace(Answers(gold, *right), probability=round(chance.uniform(0.2, 1), 3))

    return World("shapes", [answers() for _ in range(number)], small="org/tiny", large="org/big", min_confidence=0.7)


def pope_world(number: int = 200) -> World:
    """Return yes-no questions on which both models are often right, and sometimes unreadable. They are the same in
    every run of the tests."""
    chance = random.Random(7)

    def answer(gold: str, right: float) -> str:
        wrong = "no" if gold == "yes" else "yes"
        return chance.choices([gold, wrong, ""], [right, 0.97 - right, 0.03])[0]

    golds = [chance.choice(["yes", "no"]) for _ in range(number)]
    return World(
        "pope", [Answers(gold, *(answer(gold, right) for right in (0.7, 0.8, 0.75, 0.85, 0.9))) for gold in golds]
    )


RUNS = {"MAI": ("mai", "s"), "MAI R(S2)": ("mai", "r_s2"), "Full RT": ("full_rt", "s")}
RUNS |= {
    f"{side} {prompt}": (side, suffix)
    for side in SIDES
    for prompt, suffix in (("S", "s"), ("R", "r"), ("R(S2)", "r_s2"))
}
"""Name in a report -> method and suffix of the task: the runs of Tables 5 to 8, 10 and 15."""


def write_all(world: World, folder: Path, runs: Iterable[tuple[str, str]] = RUNS.values()) -> None:
    """Write runs of these methods on tasks with these suffixes."""
    for number, (method, suffix) in enumerate(runs):
        world.write(folder, method, suffix, time=f"20260101_0000{number:02d}")


WORLD = pope_world()
