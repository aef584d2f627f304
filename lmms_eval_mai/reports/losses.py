"""What a cascade loses against a baseline on some documents, at each threshold of `verify=confidence` or `verify=both`.

Nothing is run: a cascade, or the large model's short answers, and the runs of the baselines have all calls that any
threshold needs. `rules.decide` tells what the cascade does.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.confidence import NEVER, Choices
from lmms_eval_mai.paper.sample import exits_of
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.labels import SCORED, Labels
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.reports.rules import Rule, agree, decide, has_rules, known_answers
from lmms_eval_mai.reports.runs import SHARED_IMAGES, Runs
from lmms_eval_mai.statistics import Array


def _of_logit(logit: float) -> float:
    """Return the probability with this logit; the smaller of it and its complement has three digits."""
    p = 1 / (1 + math.exp(-logit))
    return round(p, 2 - math.floor(math.log10(min(p, 1 - p))))


THRESHOLDS = tuple(_of_logit(quarter / 4) for quarter in range(72, -17, -1))
"""The thresholds, the safest first: the logit of the probability is 18 to -4. Models are often sure of all their
answers, so a grid of percentages would end where their probabilities begin."""


@dataclass(frozen=True)
class Wanted:
    """The cascade whose threshold is wanted, and the promise."""

    max_loss: float
    """A share, such as 0.01 for one point."""
    confidence: float
    against: str
    """`full-rt` or `large-r`."""
    choices: Choices = Choices("confidence")  # noqa: RUF009 - frozen
    loss: str = "score"
    """`score`, or `answers`: 1 where the answer differs from that of the baseline."""
    looks: int = 1
    """The number of times that somebody will look at these documents, which was decided before."""

    @property
    def level(self) -> float:
        """The share of false promises that one look may make (Bonferroni)."""
        return (1 - self.confidence) / self.looks

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return {"full-rt": "Full RT", "large-r": "large R"}[self.against]

    @property
    def needs_cascade(self) -> bool:
        """Whether a cascade must have made the calls: else the large model's short answers are enough."""
        choices = self.choices
        return choices.verify == "both" or (choices.thinker == "small" and choices.second_check == "on")


@dataclass(frozen=True)
class Answers:
    """The answers to the documents of one benchmark. The frames have `answer` and `score`, and those of the cascade
    `exit` and `tokens`."""

    run: Run
    """The run with the large model's short answers."""
    known: pd.DataFrame
    """`rules.known_answers`."""
    cheapest: pd.DataFrame
    """The cascade with the cheapest threshold."""
    never: pd.DataFrame
    """The cascade if it is never confident."""
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
    for run in _short_answers(runs, wanted, is_scored=wanted.loss == "score" and labels is None):
        known = known_answers(runs, run)
        if labels is not None:
            known = labels.scored(run, known)
        elif wanted.loss == "answers":
            known = known.assign(**dict.fromkeys(SCORED, 0.0))
        of_run = _answers(run, known, wanted, has_scores=labels is None and wanted.loss == "score")
        if of_run is None:
            missing.append(runs.name(run.method))
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
    return run.method.small or (full_rt.method.small if full_rt else ""), run.method.model


def first_difference(of: Answers) -> pd.Series:
    """Return the place of the first threshold at which the answer to a document is another text than that of the
    baseline. Before it, both have the same score. Documents without such a threshold are left out."""
    cheapest, never, baseline = (one.answer.fillna("") for one in (of.cheapest, of.never, of.baseline))
    passed = np.searchsorted([-math.log(p) for p in THRESHOLDS], -of.known.answer_logprob)  # the first of them
    places = pd.Series(passed, index=of.known.index).mask(never != baseline, 0)
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
    first = of.cheapest.exit == exits_of("cascade", wanted.choices)[0]
    values, shares, tokens = [], [], []
    for threshold in THRESHOLDS:
        passed = first & of.known.answer_logprob.ge(math.log(threshold))
        lost = theirs - metrics.units(samples.assign(score=cheapest.where(passed, never)))
        values.append(np.bincount(images, lost) / np.bincount(images))
        shares.append(float(passed.mean()))
        tokens.append(float(of.cheapest.tokens.where(passed, of.never.tokens).mean()))
    is_anls = of.run.benchmark == "infovqa_val" and wanted.loss == "score"  # a few labelled scores may be 0 or 1
    short = of.known.large_short + (of.known.small_short if wanted.choices.verify == "both" else 0)
    return Losses(
        run=of.run,
        documents=len(of.known),
        values=np.array(values),
        is_exact=places is None
        and not is_anls
        and statistics.is_right_or_wrong(np.concatenate([base, cheapest, never])),
        first_check=np.array(shares),
        tokens=np.array(tokens),
        later_tokens=float((of.never.tokens - short).mean()),
        known=int(of.unlabelled.min()) if len(of.unlabelled) else len(THRESHOLDS),
        distance=_distance(runs, of),
    )


def _short_answers(runs: Runs, wanted: Wanted, is_scored: bool) -> Iterator[Run]:
    """Yield the runs with the large model's short answers: cascades, or else the large model alone."""
    cascades = [run for run in runs.first_checks(is_scored) if has_rules(run) or run.benchmark == GENERIC.name]
    yield from cascades
    if not wanted.needs_cascade:
        others = (run for run in runs.of("alone") if len(run.samples) and not run.derived)
        yield from (run for run in others if run.benchmark not in {one.benchmark for one in cascades})


def _answers(run: Run, known: pd.DataFrame, wanted: Wanted, has_scores: bool) -> Answers | None:
    """Return the answers to the documents of a run. None: a call is missing."""
    rules = (Rule(wanted.choices, threshold, run.rules) for threshold in (THRESHOLDS[-1], NEVER))
    cheapest, never = (decide(known, rule, run.benchmark) for rule in rules)
    name, call = {"full-rt": ("full_rt", "transfer"), "large-r": ("large_r", "large_thinking")}[wanted.against]
    baseline = pd.DataFrame({"answer": known[name], "score": known[f"{name}_score"]})
    missing = known.answer_logprob.isna().all() or known[call].isna().any() or baseline.score.isna().any()
    if missing or cheapest is None or never is None:
        return None
    return Answers(run, known, cheapest, never, baseline, has_scores, pd.Series(dtype=int))


def _same(of: Answers, cascade: pd.DataFrame, wanted: Wanted) -> pd.Series:
    """Return 1 where the answer is the same as that of the baseline, by the benchmark's own rule, else 0. The exit
    tells whether both are one call."""
    one_call = cascade.exit == {"full-rt": "transfer", "large-r": "large_think"}[wanted.against]
    same = agree(of.run.benchmark, cascade.answer, of.baseline.answer, of.run.rules)
    return (one_call | same).astype(float)


def _distance(runs: Runs, of: Answers) -> Estimate | None:
    """Return the score of large R minus that of Full RT, in points. None: one of them is not known."""
    scores = of.known[["large_r_score", "full_rt_score"]]
    if not of.has_scores or of.run.samples.score.isna().any() or scores.isna().any(axis=None):
        return None
    large_r, full_rt = (metrics.plain(scores[name]) for name in scores)
    found = metrics.compare(large_r, full_rt, "", runs.clusters(of.run), is_tested=False)
    return None if found is None else found.difference


def _check_images(run: Run) -> None:
    """Refuse documents that may share images which nobody names: the tests would take them as independent."""
    may_share = run.benchmark in SHARED_IMAGES or run.benchmark not in BENCHMARKS
    if may_share and run.samples.images.isna().any():
        raise ArgumentError(
            f"{run.file}: the questions of {benchmark_name(run.benchmark)} may share images, and this run does not "
            "tell which, so nothing can be promised. Runs of this version have the hashes of the images."
        )


def _what_is_needed(wanted: Wanted, missing: Sequence[str]) -> str:
    named = f" of {', '.join(missing)}" if missing else ""
    short = "a cascade (mode=cascade, verify=agreement)"
    if not wanted.needs_cascade:
        short = "the large model's short answers (mode=large with the task's _s, or mode=cascade)"
    others = ["Full RT (mode=transfer)"] * (wanted.against == "full-rt" or wanted.choices.thinker == "small")
    others += ["large R (mode=large with the task's _r)"] * (
        wanted.against == "large-r" or wanted.choices.thinker == "large"
    )
    return (
        f"No documents{named} have all the calls: give the folders of {short}, and of {' and of '.join(others)} on the "
        "same documents, with the same models, by an engine that reports log-probabilities, and with --log_samples. "
        "The task must be one of this package, or a copy with other documents, with thinking in one stage (such as "
        "chartqa_s)."
    )
