"""What a method would have done with the finished calls of some runs, without a model.

`joined_calls` collects the calls of all runs on the same documents with the same models. `replay` finds the calls of
the walk (`method/walk.py`) among them. The result is that of a real run if decoding is greedy and answers do not depend
on the batch; in bfloat16 vLLM's may, by a token.
"""

import functools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import Method, Stop
from lmms_eval_mai.method.walk import AskCalls, Verifier, calls_of, walk

CallsByName = Mapping[str, pd.DataFrame]
"""Name of a call, such as `small.think` or `large.transfer(small.think)` -> the columns of `frames.CALLS`, and the
`score` of its answer, by document. Documents without such a call are missing."""


def call_names(method: Method, setup: Setup) -> dict[str, AskCalls]:
    """Return the calls of each `Ask` of a method by its name."""
    return {ask.name: calls_of(ask, method, setup.variant, setup.two_stage, setup.think) for ask in method.asks}


@functools.cache
def calls_by_name(run: FinishedRun) -> dict[str, pd.DataFrame]:
    """Return the calls of one run, with the scores of their answers. The score of a final answer is lmms-eval's.
    The frames are kept, so they must not be changed."""
    names = run.calls.side.str.cat(run.calls.prompt, ".")
    names = names.where(run.calls.of.isna(), names + "(" + run.calls.of.fillna("") + ")")
    answers = call_names(run.setup.method, run.setup)
    final = run.samples.exit.map({stop.exit: str(answers[stop.answer].answer) for stop in run.setup.method.stops})
    if run.setup.family == "alone":  # its exit has any name
        final = names.groupby(run.calls.doc_id).last().reindex(run.samples.index)
    benchmark, frames = benchmark_of(run.benchmark), {}
    for name, rows in run.calls.groupby(names, sort=False):
        frame = rows.set_index("doc_id")
        pairs = zip(frame.parsed, run.samples.target[frame.index], strict=True)
        scores = pd.Series([benchmark.score_of(*pair) for pair in pairs], index=frame.index, dtype=float)
        is_final = final[frame.index] == name
        frames[str(name)] = frame.assign(score=scores.where(~is_final, run.samples.score[frame.index]))
    return frames


def joined_calls(run: FinishedRun, others: Iterator[FinishedRun], small: str, large: str) -> CallsByName:
    """Return the calls on the documents of a run: its own, and what other runs add. `small`, `large`: the models."""
    frames: dict[str, pd.DataFrame] = {}
    for other in (run, *others):
        if other.setup.decoding_of_others != run.setup.decoding_of_others:
            continue
        has_native = other.setup.decoding == run.setup.decoding
        same = other.samples.target.reindex(run.samples.index) == run.samples.target
        roles = {
            side: role
            for side in SIDES
            for role, model in zip(SIDES, (small, large), strict=True)
            if model and other.setup.model_of(side) == model
        }
        for name, frame in calls_by_name(other).items():
            side, _, prompt = name.partition(".")
            is_transfer = prompt.startswith(("transfer", "score"))
            if side not in roles or (is_transfer and other.setup.transfer != run.setup.transfer):
                continue
            if "native" in prompt and not has_native:
                continue
            name = f"{roles[side]}.{prompt}"
            new = frame[same.reindex(frame.index, fill_value=False)]
            if name in frames:
                new = pd.concat([frames[name], new.loc[new.index.difference(frames[name].index)]])
            frames[name] = new
    return {name: frame.reindex(run.samples.index) for name, frame in frames.items()}


class FinishedCall(NamedTuple):
    """What a replay needs of a call."""

    parsed: str | None
    answer_logprob: float | None
    score: float
    """nan: not known."""
    output_tokens: float


CallsOfDocument = Mapping[str, FinishedCall]
"""Name of a call -> the call on one document."""


def replay(
    method: Method, frames: CallsByName, setup: Setup, benchmark: str, rules: AgreementRules, threshold: float | None
) -> pd.DataFrame | None:
    """Return `exit`, `answer` (parsed), `score`, `output_tokens` and the `calls` of each document. None: one lacks a
    call. `setup`: that of the run whose documents these are. `threshold`: of stops without one of their own."""
    if not frames:
        return None
    names, verifier = call_names(method, setup), Verifier(benchmark_of(benchmark), rules, threshold or 1.0)
    index = next(iter(frames.values())).index
    found: dict[int, dict[str, FinishedCall]] = {document: {} for document in index}
    for name, frame in frames.items():
        known = frame.dropna(subset="side")
        columns = (known[column] for column in FinishedCall._fields)
        for document, parsed, logprob, *rest in zip(known.index, *columns, strict=True):
            answer = parsed if isinstance(parsed, str) else None
            found[document][name] = FinishedCall(answer, None if math.isnan(logprob) else logprob, *rest)
    rows = [_replayed(method, verifier, names, calls) for calls in found.values()]
    if any(row is None for row in rows):
        return None
    numbers = {"score": float, "output_tokens": float}
    documents = pd.DataFrame(rows, index, dtype=object).astype(numbers)
    if documents[[*numbers]].isna().any(axis=None):
        return None
    for number, stop in enumerate(method.stops):
        if stop.sure:
            reached = documents.index[~documents.exit.isin(method.exits[:number])]
            if _lacks_probability([found[document][str(names[stop.sure].answer)] for document in reached]):
                return None
    return documents


def _replayed(
    method: Method, verifier: Verifier, names: Mapping[str, AskCalls], calls: CallsOfDocument
) -> dict[str, Any] | None:
    """Return the row of a document. None: it lacks a call."""
    answers: dict[str, FinishedCall] = {}
    made: dict[str, float] = {}
    for step in walk(method, verifier, answers):
        if isinstance(step, Stop):
            answer = answers[step.answer]
            row = {"exit": step.exit, "answer": answer.parsed, "score": answer.score, "calls": (*made,)}
            return row | {"output_tokens": sum(made.values())}
        for ask in step:
            of_ask = names[ask.name]
            needed = [str(name) for name in dict.fromkeys((of_ask.thinking, of_ask.answer))]
            if any(name not in calls for name in needed):
                return None
            for name in (*needed, str(of_ask.score)):  # `explain` and `think` are one call in a task with prompt E
                if name in calls:
                    made[name] = calls[name].output_tokens
            answers[ask.name] = calls[needed[-1]]
    raise AssertionError("a walk ends with a stop")


def _lacks_probability(answers: Collection[FinishedCall]) -> bool:
    """Return whether the engine reported no probability of any answer. A run of such a method would be refused."""
    readable = [answer for answer in answers if answer.parsed is not None]
    return len(readable) > 0 and all(answer.answer_logprob is None for answer in readable)


def run_of_replay(run: FinishedRun, setup: Setup, documents: pd.DataFrame, frames: CallsByName) -> FinishedRun:
    """Return the result of a replay as a run. `setup`: that of the new run. It has no times."""
    parsed = documents.answer
    samples = run.samples.assign(
        score=documents.score,
        predicted=parsed.where(parsed.isin(("yes", "no")), "other").where(run.samples.predicted.notna(), None),
        output_tokens=documents.output_tokens,
        exit=documents.exit,
        readable=parsed.notna(),
        parsed=parsed,
    )
    made = (frame[[name in calls for calls in documents.calls]] for name, frame in frames.items())
    calls = pd.concat(made).dropna(subset="side").reset_index(names="doc_id")
    calls = calls.assign(seconds=np.nan, shared=True)[[*run.calls]].astype(run.calls.dtypes.to_dict())
    return replace(run, setup=setup, samples=samples, calls=calls, wall_s=None, is_replay=True)
