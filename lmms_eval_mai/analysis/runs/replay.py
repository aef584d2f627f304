"""What a method would have done with the finished calls of some runs, without a model.

`joined_calls` collects the calls of all runs on the same documents with the same models. `replay` finds the calls of
the walk (`method/walk.py`) among them. The result is that of a real run if decoding is greedy and answers do not depend
on the batch; in bfloat16 vLLM's may, by a token.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.methods import Method, Stop
from lmms_eval_mai.method.walk import AskCalls, Verifier, calls_of, walk


def call_names(method: Method, setup: Setup) -> dict[str, AskCalls]:
    """Return the calls of each `Ask` of a method by its name."""
    return {ask.name: calls_of(ask, method, setup.variant, setup.two_stage, setup.think) for ask in method.asks}


def names_of_calls(run: FinishedRun, *methods: Method) -> list[str]:
    """Return the names of all calls that methods make on the documents of a run, in their order."""
    made = [call for method in methods for call in call_names(method, run.replay_setup).values()]
    return [str(name) for calls in made for name in (calls.thinking, calls.answer)]


@functools.cache
def named_calls(run: FinishedRun) -> pd.DataFrame:
    """Return the calls of a run (`frames.CALLS`) with two more columns: the `name`, such as `small.think` or
    `large.transfer(small.think)`, and the `score` of the answer. That of a final answer is lmms-eval's. The frame is
    kept, so it must not be changed."""
    calls, documents = run.calls, run.samples.loc[run.calls.doc_id]
    names = calls.side.str.cat(calls.prompt, ".")
    names = names.where(calls.of.isna(), names + "(" + calls.of.fillna("") + ")")
    answers = call_names(run.setup.method, run.setup)
    final = documents.exit.map({stop.exit: str(answers[stop.answer].answer) for stop in run.setup.method.stops})
    if run.setup.family == "alone":  # its exit has any name
        final = names.groupby(calls.doc_id).transform("last")
    benchmark = run.rules_of_task
    scores = [benchmark.score_of(*pair) for pair in zip(calls.parsed, documents.target, strict=True)]
    is_final = names.to_numpy() == final.to_numpy()
    return calls.assign(name=names, score=np.where(is_final, documents.score, np.array(scores, dtype=float)))


def joined_calls(run: FinishedRun, others: Iterable[FinishedRun], small: str, large: str) -> pd.DataFrame:
    """Return the calls on the documents of a run: its own, and what other runs add. `small`, `large`: the models."""
    parts = []
    for other in (run, *others):
        if other.setup.non_native_decoding != run.setup.non_native_decoding:
            continue
        calls = named_calls(other)
        same = other.samples.target.reindex(run.samples.index) == run.samples.target
        roles = {
            side: role
            for side in SIDES
            for role, model in zip(SIDES, (small, large), strict=True)
            if model and other.setup.model_of(side) == model
        }
        is_used = calls.side.isin(roles) & calls.doc_id.isin(same.index[same])
        if other.setup.transfer != run.setup.transfer:
            is_used &= ~calls.prompt.isin(("transfer", "score"))
        if other.setup.decoding != run.setup.decoding:
            is_used &= ~calls.name.str.contains("native")
        used = calls[is_used]
        parts.append(used.assign(name=used.side.map(roles) + used.name.str.replace(r"^\w+", "", regex=True)))
    calls = pd.concat(parts, ignore_index=True)
    calls = calls.iloc[calls.score.isna().argsort(kind="stable")]  # of another task, only final answers have a score
    return calls.drop_duplicates(["doc_id", "name"]).reset_index(drop=True)


class FinishedCall(NamedTuple):
    """What a replay needs of a call."""

    parsed: str | None
    answer_logprob: float | None
    score: float
    """nan: not known."""
    output_tokens: float


def replay(run: FinishedRun, calls: pd.DataFrame, method: Method, threshold: float | None = None) -> FinishedRun | None:
    """Return what a method would have done on the documents of a run, with its rules of agreement, as a run without
    times. Without a score, if only the task's own metric can score some of its answers. None: a call is missing.
    `calls`: those of `joined_calls`. `threshold`: of stops without one of their own."""
    setup, task = run.replay_setup, run.rules_of_task
    names, verifier = call_names(method, setup), Verifier(task, run.rules, threshold or 1.0)
    finished = _by_document(run, calls).values()
    rows = [_replayed(method, verifier, names, document_calls) for document_calls in finished]
    if not rows or any(row is None for row in rows):
        return None
    numbers = {"score": float, "output_tokens": float}
    documents = pd.DataFrame(rows, run.samples.index, dtype=object).astype(numbers)
    if documents.output_tokens.isna().any() or (task.score is not None and documents.score.isna().any()):
        return None
    if documents.score.isna().any():  # those that are known are not a fair part
        documents["score"] = np.nan
    for number, stop in enumerate(method.stops):
        if stop.sure:
            reached = documents.index[~documents.exit.isin(method.exits[:number])]
            asked = calls[calls.doc_id.isin(reached) & (calls.name == str(names[stop.sure].answer))]
            logprobs = asked.answer_logprob[asked.parsed.notna()]
            if len(logprobs) and logprobs.isna().all():  # the engine reports none: a run would be refused
                return None
    parsed = documents.parsed
    predicted = parsed.where(parsed.isin(("yes", "no")), "other").where(run.samples.predicted.notna(), None)
    made = documents.calls.to_dict()
    is_made = [name in made[document] for document, name in zip(calls.doc_id, calls.name, strict=True)]
    return replace(
        run,
        setup=setup.with_method(method, threshold),
        samples=run.samples.assign(predicted=predicted, readable=parsed.notna(), **documents.drop(columns="calls")),
        calls=calls[is_made].assign(seconds=np.nan, shared=True)[[*run.calls]],
        wall_s=None,
        is_replay=True,
    )


def _by_document(run: FinishedRun, calls: pd.DataFrame) -> dict[int, dict[str, FinishedCall]]:
    found: dict[int, dict[str, FinishedCall]] = {document: {} for document in run.samples.index}
    known = calls[["parsed", "answer_logprob"]]
    known = known.astype(object).where(known.notna(), None)
    columns = (calls.doc_id, calls.name, known.parsed, known.answer_logprob, calls.score, calls.output_tokens)
    for document, name, *values in zip(*columns, strict=True):
        found[document][name] = FinishedCall(*values)
    return found


def _replayed(
    method: Method, verifier: Verifier, names: Mapping[str, AskCalls], calls: Mapping[str, FinishedCall]
) -> dict[str, Any] | None:
    """Return the row of a document, with the names of its `calls`. None: it lacks one of them. `calls`: by name."""
    answers: dict[str, FinishedCall] = {}
    made: dict[str, float] = {}
    for step in walk(method, verifier, answers):
        if isinstance(step, Stop):
            answer = answers[step.answer]
            row = {"exit": step.exit, "parsed": answer.parsed, "score": answer.score}
            return row | {"output_tokens": sum(made.values()), "calls": frozenset(made)}
        for ask in step:
            ask_calls = names[ask.name]
            needed = [str(name) for name in dict.fromkeys((ask_calls.thinking, ask_calls.answer))]
            if any(name not in calls for name in needed):
                return None
            for name in (*needed, str(ask_calls.score)):  # `explain` and `think` are one call in a task with prompt E
                if name in calls:
                    made[name] = calls[name].output_tokens
            answers[ask.name] = calls[needed[-1]]
    raise AssertionError("a walk ends with a stop")
