"""Evaluations in process, with answers from a function."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.pair import in_turn
from support.samples import sample

from lmms_eval_mai.contract import SIDES, Call, CallKey, Engine, Prompt, Side
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.method.sample import Trace
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation


class _Model(ScriptedEngine):
    def __init__(self, side: Side, world: "Evaluations") -> None:
        super().__init__(side, world.answer_of)
        self.world = world

    def identity(self) -> str:
        return self.world.identities[self.side]


class Evaluations:
    """Two models whose documents leave at the exits `agree_short`, `agree_think` and `transfer` in turn.

    `made` has the calls of all evaluations, those from the store left out. The store's folder is `folder / "store"`.
    """

    def __init__(self, folder: Path, **arguments: Any) -> None:
        """`arguments`: those of `--model_args`."""
        script = folder / "script.jsonl"
        script.touch()
        self.store = folder / "store"
        models = {"engine": "scripted", "small": script, "large": script}
        self.arguments = {**models, "store": self.store, **arguments}
        self.config = parse(self.arguments)
        self.made: list[CallKey] = []
        self.identities: dict[Side, str] = {side: f"the {side} model of the tests" for side in SIDES}
        self.logprob: float | None = -1.0
        self.short: str | None = None
        """All short answers, if they do not depend on the document."""

    def answer_of(self, prompt: Prompt) -> Answer:
        key = prompt.key
        self.made.append(key)
        given = dataclasses.replace(in_turn(key.doc_id, "yes", "no"), large="yes").to(prompt)
        if self.short is not None and key.prompt == "simple":
            given = dataclasses.replace(given, text=self.short)
        tokens = {"prompt_tokens": 50 + key.doc_id, "output_tokens": 1 + key.doc_id % 7, "answer_tokens": None}
        return dataclasses.replace(given, answer_logprob=self.logprob, seconds=0.0, **tokens)  # type: ignore[arg-type]

    @property
    def file(self) -> Path:
        """The only file of the store."""
        (file,) = self.store.iterdir()
        return file

    def engines(self, *others: Engine) -> Engines:
        """Return the engines of a run. `others`: some that take the place of those with these answers."""
        engines: dict[Side, Engine] = {side: _Model(side, self) for side in SIDES}
        engines |= {engine.side: engine for engine in others}
        return Engines(self.config, lambda config, _: engines[config.side])

    def evaluation(self) -> Evaluation:
        return Evaluation(self.engines(), self.config)

    def answer(
        self, evaluation: Evaluation, numbers: Sequence[int] = range(12), task: str = "pope_s", **more: Any
    ) -> list[Any]:
        """Answer these documents of a task. Returns a trace or an error for each. `more`: of `Evaluation.answer`."""
        keys = [(task, number, 0) for number in numbers]
        return evaluation.answer(keys, lambda i: sample(doc_id=numbers[i], task=task), {task: {}}, **more)

    def run(self, numbers: Sequence[int] = range(12), complete: bool = False, **more: Any) -> list[Any]:
        """Make an evaluation from its start to its end. `complete`: its results are saved."""
        evaluation = self.evaluation()
        try:
            return self.answer(evaluation, numbers, **more)
        finally:
            evaluation.stop()
            if complete:
                evaluation.complete()


def facts(traces: Sequence[Trace]) -> list[Any]:
    """Return what traces have in common if their calls were made at other times, or by another run."""
    times = {"queued_s": None, "ttft_s": None, "total_s": 0.0, "started_at": None, "shared": False}

    def timeless(call: Call) -> Call:
        return dataclasses.replace(call, **times)  # type: ignore[arg-type]

    return [(trace.exit, trace.text, [timeless(call) for call in trace.calls]) for trace in traces]
