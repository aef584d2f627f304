"""What a method loses against a baseline on some documents, at each threshold of the stop that asks for a probability.

Nothing is run: the finished runs have all calls that any threshold needs (`replay.py`).
"""

import math
from collections.abc import Iterator, Sequence
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
from lmms_eval_mai.reports.replay import Known, agree, calls_of, replay, tokens
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.reports.rules import has_rules, is_of_large
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
class Wanted:
    """The method whose threshold is wanted, and the promise."""

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
class Answers:
    """The answers to the documents of one benchmark. Frames are results of `replay`."""

    run: Run
    """The run whose documents these are."""
    known: Known
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
    """Threshold x image: the mean over its questions of the score of the baseline minus that of the cascade."""
    is_exact: bool
    """Whether each image has one question, whose answer is right or wrong."""
    first_check: Array
    """The share of the documents that finish at the first check."""
    tokens: Array
    """Output tokens of both models for one document."""
    later_tokens: float
    """Those after the first check, if no document finishes there."""
    known: int
    """The number of thresholds whose values are known: those before the first one that needs a missing gold answer."""
    distance: Estimate | None
    """The score of large R minus that of Full RT, in points. None: one of them is not known."""


def answers(runs: Runs, wanted: Wanted, labels: Labels | None = None) -> list[Answers]:
    """Return the answers of each benchmark with all calls. `labels`: the only gold answers; None: the runs have scores.

    Raises `ArgumentError` if there are none, several cascades on a benchmark, several pairs, or unknown images.
    """
    found: dict[str, Answers] = {}
    missing = []
    for run in _bases(runs, is_scored=wanted.loss == "score" and labels is None):
        known = runs.known(run)
        if labels is not None:
            known = labels.scored(run, known)
        elif wanted.loss == "answers":
            known = {name: frame.assign(score=0.0) for name, frame in known.items()}
        of_run = _answers(run, known, wanted, has_scores=labels is None and wanted.loss == "score")
        if of_run is None:
            missing.append(runs.name(run.setup))
        elif run.benchmark in found:
            raise ArgumentError(
                f"There are several cascades on {benchmark_name(run.benchmark)}. Give the folders of one cascade and "
                "of its baselines."
            )
        else:
            _check_images(run)
            if labels is not None:
                of_run = replace(of_run, unlabelled=labels.missing(run, first_difference(of_run)))
            found[run.benchmark] = of_run
    pairs = {models(runs, one.run) for one in found.values()}
    if len(pairs) > 1:
        shown = "; ".join(f"{small} and {large}" for small, large in sorted(pairs))
        raise ArgumentError(f"The cascades have different models ({shown}). Give the folders of one pair.")
    if not found:
        raise ArgumentError(_what_is_needed(wanted, missing))
    return list(found.values())


def models(runs: Runs, run: Run) -> tuple[str, str]:
    """Return the small and the large model. The small one is empty if no run has one."""
    full_rt = runs.full_rt(run)
    return run.setup.small or (full_rt.setup.small if full_rt else ""), run.setup.model


def first_difference(of: Answers) -> pd.Series:
    """Return the place of the first threshold at which the answer to a document is another text than that of the
    baseline. Before it, both have the same score. Documents without such a threshold are left out."""
    cheapest, never, baseline = (one.answer.fillna("") for one in (of.cheapest, of.never, of.baseline))
    passed = np.searchsorted([-math.log(p) for p in THRESHOLDS], -of.sure.answer_logprob)  # the first of them
    places = pd.Series(passed, index=of.sure.index).mask(never != baseline, 0)
    return places[(cheapest != baseline) | (never != baseline)]


def losses(runs: Runs, of: Answers, wanted: Wanted) -> Losses:
    """Return what the cascade loses against the baseline."""
    cheapest, never, base = of.cheapest.score, of.never.score, of.baseline.score
    if wanted.loss == "answers":
        cheapest, never = (_same(of, one, wanted) for one in (of.cheapest, of.never))
        base = pd.Series(1.0, index=base.index)
    samples = of.run.samples
    theirs = metrics.units(samples.assign(score=base))
    places = metrics.places_of(theirs.index, runs.clusters(of.run))
    images = np.arange(len(theirs)) if places is None else pd.factorize(places)[0]
    first = of.cheapest.exit == wanted.stop.exit
    of_cheapest, of_never = tokens(of.cheapest), tokens(of.never)
    values, shares, spent = [], [], []
    for threshold in THRESHOLDS:
        passed = first & of.sure.answer_logprob.ge(math.log(threshold))
        lost = theirs - metrics.units(samples.assign(score=cheapest.where(passed, never)))
        values.append(np.bincount(images, lost) / np.bincount(images))
        shares.append(float(passed.mean()))
        spent.append(float(of_cheapest.where(passed, of_never).mean()))
    is_anls = of.run.benchmark == "infovqa_val" and wanted.loss == "score"  # a few labelled scores may be 0 or 1
    return Losses(
        run=of.run,
        documents=len(of.sure),
        values=np.array(values),
        is_exact=places is None
        and not is_anls
        and statistics.is_right_or_wrong(np.concatenate([base, cheapest, never])),
        first_check=np.array(shares),
        tokens=np.array(spent),
        later_tokens=float((of_never - of.short_tokens).mean()),
        known=int(of.unlabelled.min()) if len(of.unlabelled) else len(THRESHOLDS),
        distance=_distance(runs, of),
    )


def _bases(runs: Runs, is_scored: bool) -> Iterator[Run]:
    """Yield a run of each pair on each benchmark: a cascade, or else a model alone, whose calls others complete."""
    cascades = [run for run in runs.bases(is_scored) if has_rules(run) or run.benchmark == GENERIC.name]
    yield from cascades
    benchmarks, done = {one.benchmark for one in cascades}, set()
    for run in (*runs.of("own"), *runs.of("alone")):
        model = (run.benchmark, run.setup.model, run.setup.decoding)
        if run.benchmark in benchmarks or model in done or not is_of_large(run):
            continue
        if run.setup.prompt in ("S", "R", "N", "own prompt") and "large.simple" in runs.known(run):
            done.add(model)
            yield run


def _answers(run: Run, known: Known, wanted: Wanted, has_scores: bool) -> Answers | None:
    """Return the answers to the documents of a run. None: a call is missing."""
    base = BASELINES[wanted.against][1]
    setup = run.setup.of_replays
    made = [replay(wanted.method, known, setup, run.benchmark, run.rules, one) for one in (THRESHOLDS[-1], NEVER)]
    baseline = replay(base, known, setup, run.benchmark, run.rules, None)
    calls = calls_of(wanted.method, setup)
    sure = known.get(calls[wanted.stop.sure].answer)
    cheapest, never = made
    if cheapest is None or never is None or baseline is None or sure is None or sure.answer_logprob.isna().all():
        return None
    steps = wanted.method.steps[: wanted.method.steps.index(wanted.stop)]
    before = [name for step in steps for ask in asks_of(step) for name in calls[ask.name].needed]
    short: pd.Series = sum(known[name].output_tokens.fillna(0) for name in before)
    nothing = pd.Series(dtype=int)
    return Answers(run, known, sure, short, cheapest, never, baseline, has_scores, nothing)


def _same(of: Answers, made: pd.DataFrame, wanted: Wanted) -> pd.Series:
    """Return 1 where the answer is the same as that of the baseline, by the benchmark's own rule, else 0. The exit
    tells whether both are one call."""
    last = BASELINES[wanted.against][1].stops[-1].answer
    one_call = made.exit.isin([stop.exit for stop in wanted.method.stops if stop.answer == last])
    same = agree(of.run.benchmark, made.answer, of.baseline.answer, of.run.rules)
    return (one_call | same).astype(float)


def _distance(runs: Runs, of: Answers) -> Estimate | None:
    """Return the score of large R minus that of Full RT, in points. None: one of them is not known."""
    run = of.run
    found = [
        replay(method, of.known, run.setup.of_replays, run.benchmark, run.rules, None)
        for _, method in BASELINES.values()
    ]
    if not of.has_scores or run.samples.score.isna().any() or any(one is None for one in found):
        return None
    full_rt, large_r = (metrics.plain(one.score) for one in found if one is not None)
    compared = metrics.compare(large_r, full_rt, "", runs.clusters(run), is_tested=False)
    return None if compared is None else compared.difference


def _check_images(run: Run) -> None:
    """Refuse documents that may share images which nobody names: the tests would take them as independent."""
    may_share = benchmark_of(run.benchmark).shares_images or run.benchmark not in BENCHMARKS
    if may_share and run.samples.images.isna().any():
        raise ArgumentError(
            f"{run.file}: the questions of {benchmark_name(run.benchmark)} may share images, and this run does not "
            "tell which, so nothing can be promised. Runs of this version have the hashes of the images."
        )


def _what_is_needed(wanted: Wanted, missing: Sequence[str]) -> str:
    named = f" of {', '.join(missing)}" if missing else ""
    asked = ", ".join(dict.fromkeys(ask.name for ask in (*wanted.method.asks, *BASELINES[wanted.against][1].asks)))
    return (
        f"No documents{named} have all the calls ({asked}): give the folders of runs that made them on the same "
        "documents, with the same models, by an engine that reports log-probabilities, and with --log_samples. Runs of "
        "mai, of full_rt, and of large with the task's _r have the calls of all named methods. The task must be one of "
        "this package, or a copy with other documents, with thinking in one stage (such as chartqa_s)."
    )
