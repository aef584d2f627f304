"""What a method loses against a baseline on some documents, at each threshold of the stop that asks for a probability.

Nothing is run: the finished runs have all calls that any threshold needs (`replay.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.benchmarks import BENCHMARKS, GENERIC, benchmark_of
from lmms_eval_mai.method.methods import FULL_RT, LARGE_THINK, Method, Stop, asks_of
from lmms_eval_mai.method.thresholds import NEVER
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.labels import Labels
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.replay import CallFrames, agree, calls_of, replay, tokens
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.reports.rules import has_rules
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.statistics import Array


def _of_logit(logit: float) -> float:
    """Return the probability with this logit; the smaller of it and its complement has three digits."""
    p = 1 / (1 + math.exp(-logit))
    return round(p, 2 - math.floor(math.log10(min(p, 1 - p))))


THRESHOLDS = tuple(_of_logit(quarter / 4) for quarter in range(72, -17, -1))
"""The thresholds, the safest first: the logit of the probability is 18 to -4. Models are often sure of all their
answers, so a grid of percentages would end where their probabilities begin."""


BASELINES = {
    "full-rt": ("Full RT", FULL_RT),
    "large-r": ("large R", Method("large_r", (LARGE_THINK, Stop("large_think", "large.think")))),
}
"""Value of --against -> the name of the baseline, and its method."""


@dataclass(frozen=True)
class Promise:
    """What is promised about a method whose threshold is to be chosen."""

    method: Method
    max_loss: float
    """A share, such as 0.01 for one point."""
    confidence: float
    against: str
    """A key of `BASELINES`."""
    loss: str = "score"
    """`score`, or `answers`: 1 where the answer differs from that of the baseline."""
    looks: int = 1
    """How often documents or methods are looked at before one threshold is used."""

    @property
    def level(self) -> float:
        """The level of each test, divided by the looks (Bonferroni)."""
        return (1 - self.confidence) / self.looks

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return BASELINES[self.against][0]

    @property
    def stop(self) -> Stop:
        """The stop with the threshold."""
        return next(stop for stop in self.method.stops if stop.sure and stop.min_confidence is None)


@dataclass(frozen=True)
class Replays:
    """The answers to the documents of one benchmark. Frames are results of `replay`."""

    run: Run
    """The run whose documents these are."""
    frames: CallFrames
    sure: pd.DataFrame
    """The calls whose probability decides."""
    short_tokens: pd.Series
    """Output tokens of the calls before the stop with the threshold."""
    cheapest: pd.DataFrame
    """The method with the cheapest threshold."""
    never: pd.DataFrame
    """The method if the model is never sure."""
    baseline: pd.DataFrame
    has_scores: bool
    """Whether all scores are those of the runs. Else only losses can be computed from them."""
    unlabelled: pd.Series
    """Of each document whose gold answer is needed and not known: the place of the first threshold that needs it."""


@dataclass(frozen=True)
class Losses:
    """What the cascade loses on some documents at each threshold, in the order of `THRESHOLDS`."""

    run: Run
    documents: int
    values: Array
    """The loss, of shape (thresholds, images): the score of the baseline minus that of the cascade, as a mean over the
    questions about an image."""
    is_exact: bool
    """Whether each image has one question, whose answer is right or wrong."""
    first_check: Array
    """The share of the documents that finish at the first check."""
    tokens: Array
    """Output tokens of both models for one document."""
    later_tokens: float
    """Those after the first check, if no document finishes there."""
    labelled: int
    """The number of thresholds whose values are known: those before the first one that needs a missing gold answer."""
    distance: Estimate | None
    """The score of large R minus that of Full RT, in points. None: one of them is not known."""


def replays_of_runs(runs: Runs, promise: Promise, labels: Labels | None = None) -> list[Replays]:
    """Return the answers of each benchmark with all calls. `labels`: the only gold answers; None: the runs have scores.

    Raises `ArgumentError` if there are none, several cascades on a benchmark, several pairs, or unknown images.
    """
    by_benchmark: dict[str, Replays] = {}
    missing = []
    for run in _bases(runs, is_scored=promise.loss == "score" and labels is None):
        frames = runs.call_frames(run)
        if labels is not None:
            frames = labels.scored(run, frames)
        elif promise.loss == "answers":
            frames = {name: frame.assign(score=0.0) for name, frame in frames.items()}
        replays = _replays(run, frames, promise, has_scores=labels is None and promise.loss == "score")
        if replays is None:
            missing.append(runs.name(run.setup))
        elif run.benchmark in by_benchmark:
            raise ArgumentError(
                f"There are several runs with other thinking or other options on {benchmark_name(run.benchmark)}. Give "
                "the folders of one of them and of its baselines."
            )
        else:
            _check_images(run)
            if labels is not None:
                replays = replace(replays, unlabelled=labels.missing(run, first_difference(replays)))
            by_benchmark[run.benchmark] = replays
    pairs = {runs.pair(replays.run) for replays in by_benchmark.values()}
    if len(pairs) > 1:
        shown = "; ".join(f"{small} and {large}" for small, large in sorted(pairs))
        raise ArgumentError(f"The cascades have different models ({shown}). Give the folders of one pair.")
    if not by_benchmark:
        raise ArgumentError(_what_is_needed(promise, missing))
    return list(by_benchmark.values())


def first_difference(replays: Replays) -> pd.Series:
    """Return the place of the first threshold at which the answer to a document is another text than that of the
    baseline. Before it, both have the same score. Documents without such a threshold are left out."""
    cheapest, never, baseline = (
        frame.answer.fillna("") for frame in (replays.cheapest, replays.never, replays.baseline)
    )
    passed = np.searchsorted([-math.log(p) for p in THRESHOLDS], -replays.sure.answer_logprob)  # the first of them
    places = pd.Series(passed, index=replays.sure.index).mask(never != baseline, 0)
    return places[(cheapest != baseline) | (never != baseline)]


def losses(runs: Runs, replays: Replays, promise: Promise) -> Losses:
    """Return what the cascade loses against the baseline."""
    cheapest, never, baseline = replays.cheapest.score, replays.never.score, replays.baseline.score
    if promise.loss == "answers":
        cheapest, never = (_same(replays, frame, promise) for frame in (replays.cheapest, replays.never))
        baseline = pd.Series(1.0, index=baseline.index)
    samples = replays.run.samples
    of_baseline = metrics.units(samples.assign(score=baseline))
    places = metrics.places_of(of_baseline.index, runs.clusters(replays.run))
    images = np.arange(len(of_baseline)) if places is None else pd.factorize(places)[0]
    first = replays.cheapest.exit == promise.stop.exit
    cheapest_tokens, never_tokens = tokens(replays.cheapest), tokens(replays.never)
    values, shares, spent = [], [], []
    for threshold in THRESHOLDS:
        passed = first & replays.sure.answer_logprob.ge(math.log(threshold))
        lost = of_baseline - metrics.units(samples.assign(score=cheapest.where(passed, never)))
        values.append(np.bincount(images, lost) / np.bincount(images))
        shares.append(float(passed.mean()))
        spent.append(float(cheapest_tokens.where(passed, never_tokens).mean()))
    # A few labelled scores of ANLS may be 0 or 1.
    is_anls = replays.run.benchmark == "infovqa_val" and promise.loss == "score"
    scores = np.concatenate([baseline, cheapest, never])
    return Losses(
        run=replays.run,
        documents=len(replays.sure),
        values=np.array(values),
        is_exact=places is None and not is_anls and statistics.is_right_or_wrong(scores),
        first_check=np.array(shares),
        tokens=np.array(spent),
        later_tokens=float((never_tokens - replays.short_tokens).mean()),
        labelled=int(replays.unlabelled.min()) if len(replays.unlabelled) else len(THRESHOLDS),
        distance=_distance(runs, replays),
    )


def _bases(runs: Runs, is_scored: bool) -> list[Run]:
    """Return a run of each pair on each benchmark: a cascade, or else a run of the large model, which others
    complete."""
    bases = runs.bases("cascade", is_scored=is_scored)
    cascades = [run for run in bases if has_rules(run) or run.benchmark == GENERIC.name]
    benchmarks = {run.benchmark for run in cascades}
    others = runs.bases("own", "alone", is_scored=is_scored)
    return [*cascades, *(run for run in others if run.benchmark not in benchmarks)]


def _replays(run: Run, frames: CallFrames, promise: Promise, has_scores: bool) -> Replays | None:
    """Return the answers to the documents of a run. None: a call is missing."""
    setup, method = run.setup.of_replays, promise.method
    calls = calls_of(method, setup)
    sure = frames.get(calls[promise.stop.sure].answer)
    cheapest, never, baseline = (
        replay(steps, frames, setup, run.benchmark, run.rules, threshold)
        for steps, threshold in (
            (method, THRESHOLDS[-1]),
            (method, NEVER),
            (BASELINES[promise.against][1], None),
        )
    )
    if cheapest is None or never is None or baseline is None or sure is None or sure.answer_logprob.isna().all():
        return None
    steps = method.steps[: method.steps.index(promise.stop)]
    before = [name for step in steps for ask in asks_of(step) for name in calls[ask.name].needed]
    short: pd.Series = sum(frames[name].output_tokens.fillna(0) for name in before)
    nothing = pd.Series(dtype=int)
    return Replays(run, frames, sure, short, cheapest, never, baseline, has_scores, nothing)


def _same(replays: Replays, documents: pd.DataFrame, promise: Promise) -> pd.Series:
    """Return 1 where the answer is the same as that of the baseline, by the benchmark's own rule, else 0. The exit
    tells whether both are one call."""
    last = BASELINES[promise.against][1].stops[-1].answer
    one_call = documents.exit.isin([stop.exit for stop in promise.method.stops if stop.answer == last])
    same = agree(replays.run.benchmark, documents.answer, replays.baseline.answer, replays.run.rules)
    return (one_call | same).astype(float)


def _distance(runs: Runs, replays: Replays) -> Estimate | None:
    """Return the score of large R minus that of Full RT, in points. None: one of them is not known."""
    run = replays.run
    full_rt, large_r = (
        replay(method, replays.frames, run.setup.of_replays, run.benchmark, run.rules, None)
        for _, method in BASELINES.values()
    )
    if not replays.has_scores or run.samples.score.isna().any() or full_rt is None or large_r is None:
        return None
    scores = metrics.plain(large_r.score), metrics.plain(full_rt.score)
    comparison = metrics.compare(*scores, "", runs.clusters(run), is_tested=False)
    return None if comparison is None else comparison.difference


def _check_images(run: Run) -> None:
    """Refuse documents that may share images which nobody names: the tests would take them as independent."""
    may_share = benchmark_of(run.benchmark).shares_images or run.benchmark not in BENCHMARKS
    if may_share and run.samples.images.isna().any():
        raise ArgumentError(
            f"{run.file}: the questions of {benchmark_name(run.benchmark)} may share images, and this run does not "
            "tell which, so nothing can be promised. Runs of this version have the hashes of the images."
        )


def _what_is_needed(promise: Promise, missing: Sequence[str]) -> str:
    named = f" of {', '.join(missing)}" if missing else ""
    asked = ", ".join(dict.fromkeys(ask.name for ask in (*promise.method.asks, *BASELINES[promise.against][1].asks)))
    return (
        f"No documents{named} have all the calls ({asked}): give the folders of runs that made them on the same "
        "documents, with the same models, by an engine that reports log-probabilities, and with --log_samples. Runs of "
        "mai, of full_rt, and of large with the task's _r have the calls of all named methods. The task must be one of "
        "this package, or a copy with other documents, with thinking in one stage (such as chartqa_s)."
    )
