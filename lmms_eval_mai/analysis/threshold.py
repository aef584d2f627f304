"""Chooses the threshold of a method that asks how sure a model is by documents, with a bound on what it loses.

Learn then Test (Angelopoulos et al., arXiv 2110.01052) with a fixed sequence: the thresholds are tested one after
another, from the safest to the cheapest, until one test fails. The last one before it is chosen. The sequence does not
depend on the documents, so no correction for its length is needed. The tests are in `intervals`: an exact one for
answers that are right or wrong, with one question about each image, and bets for all others.

What is promised: with the given confidence, the expected loss of the chosen threshold on other images of the same kinds
in the same shares is at most `max_loss`. The loss of an image is the mean over the questions about it.

Nothing is run: the finished runs have all calls that any threshold needs (`runs/replay.py`).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lmms_eval_mai.analysis import intervals
from lmms_eval_mai.analysis.intervals import Array, Estimate
from lmms_eval_mai.analysis.paper_numbers import benchmark_name
from lmms_eval_mai.analysis.report import Column, Table, table
from lmms_eval_mai.analysis.runs import metrics
from lmms_eval_mai.analysis.runs.folders import FinishedRun
from lmms_eval_mai.analysis.runs.replay import call_names, replay
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.agreement import verify
from lmms_eval_mai.method.benchmarks import GENERIC
from lmms_eval_mai.method.methods import FULL_RT, LARGE_THINK, NEVER, Method, Stop, asks_of

# --- the losses at each threshold ---


def _probability(logit: float) -> float:
    """Return the probability with this logit; the smaller of it and its complement has three digits."""
    p = 1 / (1 + math.exp(-logit))
    return round(p, 2 - math.floor(math.log10(min(p, 1 - p))))


THRESHOLDS = tuple(_probability(quarter / 4) for quarter in range(72, -17, -1))
"""The thresholds, the safest first: the logit of the probability is 18 to -4. Models are often sure of all their
answers, so a grid of percentages would end where their probabilities begin."""


BASELINES = {
    "full-rt": Method("Full RT", FULL_RT.steps),
    "large-r": Method("large R", (LARGE_THINK, Stop("large_think", "large.think"))),
}
"""Value of --against -> the baseline. Its only stop has no condition."""


@dataclass(frozen=True)
class Promise:
    """What is promised about a method whose threshold is to be chosen."""

    method: Method
    max_loss: float
    """A share, such as 0.01 for one point."""
    confidence: float
    baseline: Method
    """One of `BASELINES`."""
    loss: str = "score"
    """`score`, or `answers`: 1 where the answer differs from that of the baseline."""

    @property
    def stop(self) -> Stop:
        return next(stop for stop in self.method.stops if stop.sure and stop.min_confidence is None)


@dataclass(frozen=True)
class Losses:
    """What the cascade loses against the baseline on the documents of one benchmark, at each threshold, in the order of
    `THRESHOLDS`."""

    run: FinishedRun
    """The run whose documents these are."""
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
    distance: Estimate | None
    """The score of large R minus that of Full RT, in points. None: one of them is not known."""


def losses_of_runs(runs: Runs, promise: Promise) -> list[Losses]:
    """Return the losses on each benchmark with all calls. Raises `ArgumentError` if there are none, several cascades on
    a benchmark, several pairs, or unknown images."""
    by_benchmark: dict[str, Losses] = {}
    missing, methods = [], (promise.method, promise.baseline)
    for run in _calibrated_runs(runs, is_scored=promise.loss == "score"):
        losses = _losses(runs, run, promise)
        if losses is None:
            missing.append(f"{run.file}: the runs of its models have {runs.what_is_missing(run, *methods)}")
        elif run.benchmark in by_benchmark:
            raise ArgumentError(
                f"There are several runs with other thinking or other options on {benchmark_name(run.benchmark)}. Give "
                "the folders of one of them and of its baselines."
            )
        else:
            _check_images(run)
            by_benchmark[run.benchmark] = losses
    pairs = {runs.pair(losses.run) for losses in by_benchmark.values()}
    if len(pairs) > 1:
        shown = "; ".join(f"{small} and {large}" for small, large in sorted(pairs))
        raise ArgumentError(f"The cascades have different models ({shown}). Give the folders of one pair.")
    if not by_benchmark:
        raise ArgumentError(_what_is_needed(promise, missing))
    return list(by_benchmark.values())


def _calibrated_runs(runs: Runs, is_scored: bool) -> list[FinishedRun]:
    """Return a run of each pair on each benchmark: a cascade, or else one of the large model, which others complete."""
    cascades = runs.replayable("cascade", is_scored=is_scored)
    benchmarks = {run.benchmark for run in cascades}
    others = runs.replayable("solo", "alone", is_scored=is_scored)
    return [*cascades, *(run for run in others if run.benchmark not in benchmarks)]


def _losses(runs: Runs, run: FinishedRun, promise: Promise) -> Losses | None:
    """Return the losses on the documents of a run. None: a call is missing."""
    documents = _documents(runs, run, promise)
    if documents is None:
        return None
    # What `Verifier.holds` (method/walk.py) decides at one threshold, at all of them.
    logprobs = [math.log(threshold) for threshold in THRESHOLDS]
    is_first = documents.may_be_first.to_numpy()[:, None] & (documents.logprob.to_numpy()[:, None] >= logprobs)
    scores = np.where(is_first, documents[["cheapest"]], documents[["never"]])
    tokens = np.where(is_first, documents[["cheapest_tokens"]], documents[["never_tokens"]])
    baseline = metrics.units(run.samples, documents.baseline)
    lost = metrics.units(run.samples, pd.DataFrame(scores, documents.index)).rsub(baseline, axis=0)
    clusters = metrics.cluster_of(baseline.index, runs.clusters(run.benchmark))
    images = np.arange(len(baseline)) if clusters is None else pd.factorize(clusters)[0]
    # A few scores of ANLS may be 0 or 1.
    is_anls = run.benchmark == "infovqa_val" and promise.loss == "score"
    replayed = documents[["baseline", "cheapest", "never"]].to_numpy()
    return Losses(
        run=run,
        values=np.array([np.bincount(images, column) for _, column in lost.items()]) / np.bincount(images),
        is_exact=clusters is None and not is_anls and intervals.is_right_or_wrong(replayed),
        first_check=is_first.mean(axis=0),
        tokens=tokens.mean(axis=0),
        later_tokens=float((documents.never_tokens - documents.first_tokens).mean()),
        distance=_distance(runs, run) if promise.loss == "score" else None,
    )


def _documents(runs: Runs, run: FinishedRun, promise: Promise) -> pd.DataFrame | None:
    """Return a row for each document: its scores with the `cheapest` threshold, if the model is `never` sure, and of
    the `baseline`; the output tokens of the first two, and those before the `first` check; the log-probability. None:
    a call is missing."""
    method, calls = promise.method, runs.calls(run)
    if promise.loss == "answers":
        calls = _scored_by_baseline(run, calls, promise)
    names = call_names(method, run.replay_setup)
    sure = calls[calls.name == str(names[promise.stop.sure].answer)].set_index("doc_id").answer_logprob
    cheapest, never, baseline = (
        replay(run, calls, steps, threshold)
        for steps, threshold in ((method, THRESHOLDS[-1]), (method, NEVER), (promise.baseline, None))
    )
    if cheapest is None or never is None or baseline is None or sure.isna().all():
        return None
    if any(one.samples.score.isna().any() for one in (cheapest, never, baseline)):
        return None
    before = method.steps[: method.steps.index(promise.stop)]
    asks = [names[ask.name] for step in before for ask in asks_of(step)]
    asked = {str(name) for ask_calls in asks for name in (ask_calls.thinking, ask_calls.answer)}
    first = calls[calls.name.isin(asked)].groupby("doc_id").output_tokens.sum()
    return pd.DataFrame(
        {
            "may_be_first": cheapest.samples.exit == promise.stop.exit,
            "logprob": sure.reindex(run.samples.index),
            "cheapest": cheapest.samples.score,
            "never": never.samples.score,
            "baseline": baseline.samples.score,
            "cheapest_tokens": cheapest.samples.output_tokens,
            "never_tokens": never.samples.output_tokens,
            "first_tokens": first.reindex(run.samples.index, fill_value=0),
        }
    )


def _scored_by_baseline(run: FinishedRun, calls: pd.DataFrame, promise: Promise) -> pd.DataFrame:
    """Return the calls with the score 1 for an answer that is the same as that of the baseline, by the benchmark's own
    rule, and 0 for others."""
    last = str(call_names(promise.baseline, run.replay_setup)[promise.baseline.stops[-1].answer].answer)
    is_last, benchmark = calls.name == last, run.rules_of_task
    others = calls.doc_id.map(calls[is_last].set_index("doc_id").parsed)
    same = [
        isinstance(answer, str) and isinstance(other, str) and verify(benchmark, answer, other, run.rules)
        for answer, other in zip(calls.parsed, others, strict=True)
    ]
    return calls.assign(score=np.where(is_last, 1.0, same))


def _distance(runs: Runs, run: FinishedRun) -> Estimate | None:
    """Return the score of large R minus that of Full RT, in points. None: one of them is not known."""
    full_rt, large_r = (runs.replay(run, method) for method in BASELINES.values())
    if run.samples.score.isna().any() or full_rt is None or large_r is None:
        return None
    a, b = (metrics.plain(one.samples.score) for one in (large_r, full_rt))
    comparison = metrics.compare(a, b, "", runs.clusters(run.benchmark))
    return None if comparison is None else comparison.difference


def _check_images(run: FinishedRun) -> None:
    """Refuse documents that may share images which nobody names: the tests would take them as independent."""
    may_share = run.rules_of_task.shares_images or run.rules_of_task == GENERIC
    if may_share and run.samples.images.isna().any():
        raise ArgumentError(
            f"{run.file}: the questions of {benchmark_name(run.benchmark)} may share images, and this run does not "
            "tell which, so nothing can be promised. Runs of this version have the hashes of the images."
        )


def _what_is_needed(promise: Promise, missing: Sequence[str]) -> str:
    asked = ", ".join(dict.fromkeys(ask.name for ask in (*promise.method.asks, *promise.baseline.asks)))
    return (
        f"No documents have all the calls ({asked}): give the folders of runs that made them on the same documents, "
        "with the same models, by an engine that reports log-probabilities, and with --log_samples. Runs of mai, of "
        "full_rt, and of large and large_r have the calls of all named methods. On a task that is not of this package, "
        f"its own metric must have scored each call, or --loss answers is needed. {'. '.join(missing)}"
    )


# --- the choice ---


@dataclass(frozen=True)
class Choice:
    """The threshold that some documents choose."""

    losses: Losses
    index: int | None
    """The index of the threshold in `THRESHOLDS`. None: no threshold keeps the promise."""

    @property
    def benchmark(self) -> str:
        return self.losses.run.benchmark

    @property
    def threshold(self) -> float | None:
        return None if self.index is None else THRESHOLDS[self.index]

    @property
    def loss(self) -> Estimate:
        """The loss at the threshold, or at the safest one, in points."""
        values = self.losses.values[self.index or 0]
        if self.losses.is_exact:
            counts = int((values > 0).sum()), int((values < 0).sum())
            return intervals.paired_share_difference(*counts, len(values)).percent()
        parts = np.column_stack([values, np.ones(len(values))])
        return metrics.difference_interval(parts, intervals.ratio, None).percent()

    @property
    def band(self) -> tuple[float, float, float]:
        """The share of the documents that finish at the first check, and the ends of the band that holds at all
        thresholds at once, with a confidence of 95% (Dvoretzky, Kiefer and Wolfowitz)."""
        half = math.sqrt(math.log(2 / (1 - intervals.LEVEL)) / (2 * self.losses.values.shape[1]))
        share = float(self.losses.first_check[self.index or 0])
        return share, max(share - half, 0), min(share + half, 1)

    @property
    def exits(self) -> Estimate:
        """The documents that finish at the first check, in percent."""
        share, low, high = self.band
        return Estimate(100 * share, self.losses.run.documents, 100 * low, 100 * high)

    @property
    def tokens(self) -> Estimate:
        """Output tokens for one document, and those at the ends of the band of exits."""
        value, later, (share, low, high) = self.losses.tokens[self.index or 0], self.losses.later_tokens, self.band
        return Estimate(value, self.losses.run.documents, value - (high - share) * later, value + (share - low) * later)


def accepts(losses: Array, is_exact: bool, promise: Promise) -> bool:
    """Return whether these losses, one for each image, show that the expected loss is at most `max_loss`."""
    level = 1 - promise.confidence
    if losses.mean() > promise.max_loss:  # bets may have been won before the losses came
        return False
    if is_exact:
        worse, better = int((losses > 0).sum()), int((losses < 0).sum())
        return intervals.paired_loss_p_value(worse, better, len(losses), promise.max_loss) <= level
    return intervals.betting_p_value(losses, promise.max_loss) <= level


def threshold_index(values: Array, is_exact: bool, promise: Promise) -> int | None:
    """Return the index of the last threshold before a test fails. None: the first one fails. `values`: threshold x
    image."""
    accepted = itertools.takewhile(lambda losses: accepts(losses, is_exact, promise), values)
    number = sum(1 for _ in accepted)
    return number - 1 if number else None


def points(value: float) -> str:
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def promised(promise: Promise, choices: Sequence[Choice]) -> str:
    """Return what the thresholds promise, as a sentence or two."""
    several = any(choice.losses.values.shape[1] < choice.losses.run.documents for choice in choices)
    unit = " per image (the mean over the questions about it)" if several else ""
    share, baseline = 100 * promise.max_loss, promise.baseline.name
    bound = f"score{unit} is at most {points(share)} below that of {baseline}"
    if promise.loss == "answers":
        bound = f"share of answers{unit} that differ from those of {baseline} is at most {share:g}%"
    is_pope = any(choice.benchmark == "pope" for choice in choices)
    return (
        f"With a confidence of {100 * promise.confidence:g}%, the expected {bound} on other documents of the same "
        f"kinds in the same shares. This holds for each threshold by itself, for this pair of models, and not for the "
        f"documents that chose it.{' On POPE, the score is the accuracy, not F1.' * is_pope}"
    )


def refusal(choice: Choice, promise: Promise) -> str | None:
    """Return why no threshold keeps the promise. None: one does."""
    if choice.index is not None:
        return None
    documents, images = choice.losses.run.documents, choice.losses.values.shape[1]
    shown = f"{documents:,} documents" + (f" about {images:,} images" if images < documents else "")
    least = math.ceil(math.log(1 - promise.confidence) / math.log(1 - promise.max_loss))  # if none of them loses
    more = f"At least {least:,} are needed. " if images < least else ""
    return (
        f"{benchmark_name(choice.benchmark)}: {shown} cannot promise a loss of at most "
        f"{points(100 * promise.max_loss)} with a confidence of {100 * promise.confidence:g}%. {more}"
        f"The safest threshold loses {choice.loss.value:.2f} points here. The method, the loss and the number of "
        "documents must be decided before: each further look at these documents may promise falsely. Calibrate with "
        "other documents. To look N times, decide so before the first look, and give --confidence 1 - (1 - P)/N each "
        "time."
    )


def choice_table(choices: Sequence[Choice], promise: Promise) -> Iterator[Table]:
    """Yield the thresholds with their loss and their cost on the documents that chose them."""
    lost = "differs from" if promise.loss == "answers" else "loss against"
    columns: list[Column[Choice]] = [
        Column("benchmark", "text", 0, lambda row: benchmark_name(row.benchmark)),
        Column("documents", "count", 0, lambda row: row.losses.run.documents),
        Column("images", "count", 0, lambda row: row.losses.values.shape[1]),
        Column("min_confidence", "text", 0, lambda row: None if row.threshold is None else repr(row.threshold)),
        Column(f"{lost} {promise.baseline.name}, points", "percent", 2, lambda row: row.loss),
        Column("first check, %", "percent", 1, lambda row: row.exits),
        Column("output tokens", "number", 1, lambda row: row.tokens),
        Column("large R minus Full RT, points", "percent", 2, lambda row: row.losses.distance),
    ]
    notes = [
        "The loss has its paired 95% interval. The exits have the 95% band that holds for all thresholds at once "
        "(DKW), and the output tokens are those at its ends."
    ]
    if any(choice.index is None for choice in choices):
        notes.append("Without a threshold, the row is that of the safest one.")
    return table("calibration", "Thresholds: the cheapest that keep the promise, if any", columns, choices, notes)
