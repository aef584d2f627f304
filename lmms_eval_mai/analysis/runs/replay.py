"""What a method would have done with the finished calls of some runs, without a model.

`joined_calls` collects the calls of all runs on the same documents with the same models. `replay` walks through the
steps of a method as `method/run.py` does. The result is that of a real run if decoding is greedy and answers do not
depend on the batch; in bfloat16 vLLM's may, by a token.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.agreement import agree as agree_two
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.methods import IN_TWO_STAGES, Method, Stop, asks_of, prompt_of

CallsByName = Mapping[str, pd.DataFrame]
"""Name of a call, such as `small.think` or `large.transfer(small.think)` -> the columns of `frames.CALLS`, and the
`score` of its answer, by document. Documents without such a call are missing."""


@dataclass(frozen=True)
class CallNames:
    """The names of the calls that an `Ask` makes."""

    thinking: str
    answer: str
    """The same call, except with two stages."""
    also: tuple[str, ...] = ()
    """Calls before it that not every run needs: the scoring of sparse transfer."""

    @property
    def needed(self) -> tuple[str, ...]:
        """Those that a run must have made."""
        return tuple(dict.fromkeys((self.thinking, self.answer)))


def call_names(method: Method, setup: Setup) -> dict[str, CallNames]:
    """Return the calls of each `Ask` of a method by its name."""
    by_ask: dict[str, CallNames] = {}
    for ask in method.asks:
        prompt = prompt_of(ask, setup.variant, setup.think)
        name = f"{ask.side}.{prompt}"
        if prompt == "transfer":
            thinking = by_ask[ask.of].thinking
            call = f"{name}({thinking})"
            by_ask[ask.name] = CallNames(call, call, (f"large.score({thinking})",))
        elif prompt in IN_TWO_STAGES and setup.two_stage and method.is_answer_used(ask):
            by_ask[ask.name] = CallNames(name, f"{ask.side}.stage2({name})")
        else:
            by_ask[ask.name] = CallNames(name, name)
    return by_ask


@functools.cache
def calls_by_name(run: FinishedRun) -> dict[str, pd.DataFrame]:
    """Return the calls of one run, with the scores of their answers. The score of a final answer is lmms-eval's.
    The frames are kept, so they must not be changed."""
    names = run.calls.side.str.cat(run.calls.prompt, ".")
    names = names.where(run.calls.of.isna(), names + "(" + run.calls.of.fillna("") + ")")
    answers = call_names(run.setup.method, run.setup)
    final = run.samples.exit.map({stop.exit: answers[stop.answer].answer for stop in run.setup.method.stops})
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


def replay(
    method: Method, frames: CallsByName, setup: Setup, benchmark: str, rules: AgreementRules, threshold: float | None
) -> pd.DataFrame | None:
    """Return `exit`, `answer` (parsed), `score`, `small_tokens` and `large_tokens` of each document. None: one lacks a
    call. `setup`: that of the run whose documents these are. `threshold`: of stops without one of their own."""
    calls = call_names(method, setup)
    index = next(iter(frames.values())).index
    nothing = next(iter(frames.values())).iloc[:0].reindex(index)  # perhaps no document needs the call
    frames = {**dict.fromkeys((name for names in calls.values() for name in names.needed), nothing), **frames}
    open_ = pd.Series(True, index=index)
    empty = {"exit": None, "answer": None, "score": np.nan, "small_tokens": 0.0, "large_tokens": 0.0}
    documents = pd.DataFrame(empty, index)
    counted: set[str] = set()
    for step in method.steps:
        if isinstance(step, Stop):
            if step.sure and _lacks_probability(frames[calls[step.sure].answer][open_]):
                return None
            done = open_.copy()
            if step.agree:
                a, b = (frames[calls[name].answer].parsed for name in step.agree)
                done &= agree(benchmark, a, b, rules)
            if step.sure:
                done &= _is_sure(step, calls, frames, threshold)
            answer = frames[calls[step.answer].answer]
            documents.loc[done, "exit"] = step.exit
            documents.loc[done, "answer"] = answer.parsed[done]
            documents.loc[done, "score"] = answer.score[done]
            open_ &= ~done
        for ask in asks_of(step):
            documents[f"{ask.side}_tokens"] += _tokens(calls[ask.name], frames, counted).where(open_, 0)
    return None if documents.drop(columns=["exit", "answer"]).isna().any(axis=None) else documents


def _is_sure(stop: Stop, calls: Mapping[str, CallNames], frames: CallsByName, threshold: float | None) -> pd.Series:
    """Return whether the answer of a stop that asks for it is probable enough, for each document."""
    least = stop.min_confidence if stop.min_confidence is not None else threshold
    answer = frames[calls[stop.sure].answer]
    return answer.answer_logprob.ge(math.log(least or 1.0)) & answer.parsed.notna()


def _lacks_probability(answers: pd.DataFrame) -> bool:
    """Return whether the engine reported no probability of any answer. A run of such a method would be refused."""
    readable = answers[answers.parsed.notna()]
    return len(readable) > 0 and bool(readable.answer_logprob.isna().all())


def _tokens(calls: CallNames, frames: CallsByName, counted: set[str]) -> pd.Series:
    """Return the output tokens of the calls of an `Ask`, without those of earlier ones, which are added to `counted`:
    `explain` and `think` are one call in a task with prompt E."""
    tokens = pd.Series(0.0, index=next(iter(frames.values())).index)
    for name in (*calls.needed, *calls.also):
        if name in frames and name not in counted:
            tokens += frames[name].output_tokens if name in calls.needed else frames[name].output_tokens.fillna(0)
            counted.add(name)
    return tokens


def agree(benchmark: str, a: pd.Series, b: pd.Series, rules: AgreementRules) -> pd.Series:
    """Return whether two parsed answers agree, for each document."""
    record, pairs = benchmark_of(benchmark), zip(a, b, strict=True)
    flags = [isinstance(x, str) and isinstance(y, str) and agree_two(record, x, y, rules) for x, y in pairs]
    return pd.Series(flags, index=a.index, dtype=bool)


def tokens(documents: pd.DataFrame) -> pd.Series:
    """Return the output tokens of both models for each document of a replay."""
    return documents.small_tokens + documents.large_tokens


def run_of_replay(
    run: FinishedRun, method: Method, setup: Setup, documents: pd.DataFrame, frames: CallsByName
) -> FinishedRun:
    """Return the result of a replay as a run. `setup`: that of the new run. It has no times."""
    parsed = documents.answer
    samples = run.samples.assign(
        score=documents.score,
        predicted=parsed.where(parsed.isin(("yes", "no")), "other").where(run.samples.predicted.notna(), None),
        output_tokens=tokens(documents),
        exit=documents.exit,
        readable=parsed.notna(),
        parsed=parsed,
    )
    calls = pd.concat(_made_calls(method, setup, documents, frames)).dropna(subset="side").reset_index(names="doc_id")
    calls = calls.assign(seconds=np.nan, shared=True)[[*run.calls]].astype(run.calls.dtypes.to_dict())
    return replace(run, setup=setup, samples=samples, calls=calls, wall_s=None, is_replay=True)


def _made_calls(method: Method, setup: Setup, documents: pd.DataFrame, frames: CallsByName) -> Iterator[pd.DataFrame]:
    """Yield the calls that a replay makes, each with the documents that reach it."""
    calls = call_names(method, setup)
    made: set[str] = set()
    reached = pd.Series(True, index=documents.index)
    for step in method.steps:
        for ask in asks_of(step):
            for name in (*calls[ask.name].needed, *calls[ask.name].also):
                if name in frames and name not in made:  # of two steps with one call, more documents reach the first
                    made.add(name)
                    yield frames[name][reached]
        if isinstance(step, Stop):
            reached &= documents.exit != step.exit
