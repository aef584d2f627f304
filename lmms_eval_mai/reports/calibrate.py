"""Chooses the threshold of `verify=confidence` or `verify=both` by documents, with a bound on what it loses.

Learn then Test (Angelopoulos et al., arXiv 2110.01052) with a fixed sequence: the thresholds are tested one after
another, from the safest to the cheapest, until one test fails. The last one before it is chosen. The sequence does not
depend on the documents, so no correction for its length is needed. The tests are in `statistics`: an exact one for
answers that are right or wrong, with one question about each image, and bets for all others.

What is promised: with the given confidence, the expected loss of the chosen threshold on other images of the same kind
is at most `max_loss`. The loss of an image is the mean over the questions about it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lmms_eval_mai import statistics
from lmms_eval_mai.contract import Side
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
from lmms_eval_mai.paper.confidence import NEVER, Verify
from lmms_eval_mai.paper.sample import exits_of
from lmms_eval_mai.reports import metrics
from lmms_eval_mai.reports.folders import Run
from lmms_eval_mai.reports.labels import Labels
from lmms_eval_mai.reports.paper_numbers import benchmark_name
from lmms_eval_mai.reports.report import Estimate, Of, Table, table
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
SCORES = ("large_score", "transfer_score", "full_rt_score", "large_r_score")


@dataclass(frozen=True)
class Wanted:
    """The cascade whose threshold is wanted, and the promise."""

    max_loss: float
    """A share, such as 0.01 for one point."""
    confidence: float
    against: str
    """`full-rt` or `large-r`."""
    verify: Verify = "confidence"
    thinker: Side = "small"
    second_check: bool = True
    loss: str = "score"
    """`score`, or `answers`: 1 where the answer differs from that of the baseline."""
    anytime: bool = False
    """Whether documents may be added after a refusal."""

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return {"full-rt": "Full RT", "large-r": "large R"}[self.against]

    def accepts(self, losses: Array, is_exact: bool) -> bool:
        """Return whether these losses, one for each image, show that the expected loss is at most `max_loss`."""
        level = 1 - self.confidence
        if is_exact and not self.anytime:
            worse, better = int((losses > 0).sum()), int((losses < 0).sum())
            p = statistics.paired_loss_p_value(worse, better, len(losses), self.max_loss)
            return p <= level - statistics.SLACK
        if not self.anytime:  # documents are often sorted by kind
            losses = np.random.default_rng(statistics.SEED).permutation(losses)
        return statistics.anytime_p_value(losses, self.max_loss) <= level


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
    distance: Estimate | None
    """The score of large R minus that of Full RT, in points. None: one of them is not known."""


@dataclass(frozen=True)
class Choice:
    """The threshold that some documents choose."""

    losses: Losses
    place: int | None
    """The place of the threshold in `THRESHOLDS`. None: no threshold keeps the promise."""
    needed: int | None = None
    """About how many images are needed for the safest threshold. None: not known, or not needed."""

    @property
    def benchmark(self) -> str:
        """The benchmark."""
        return self.losses.run.benchmark

    @property
    def threshold(self) -> float | None:
        """The threshold. None: no threshold keeps the promise."""
        return None if self.place is None else THRESHOLDS[self.place]

    @property
    def loss(self) -> Estimate:
        """The loss at the threshold, or at the safest one, in points."""
        values = self.losses.values[self.place or 0]
        if self.losses.is_exact:
            counts = int((values > 0).sum()), int((values < 0).sum())
            return metrics.estimate(statistics.paired_share_difference(*counts, len(values)))
        parts = np.column_stack([values, np.ones(len(values))])
        return metrics.estimate(metrics.difference(parts, statistics.ratio, None))

    @property
    def band(self) -> float:
        """Half of the width of the band that holds for the shares of exits at all thresholds at once, with a confidence
        of 95% (Dvoretzky, Kiefer and Wolfowitz)."""
        return math.sqrt(math.log(2 / (1 - statistics.LEVEL)) / (2 * self.losses.values.shape[1]))

    @property
    def exits(self) -> Estimate:
        """The documents that finish at the first check, in percent."""
        value = self.losses.first_check[self.place or 0]
        low, high = max(value - self.band, 0), min(value + self.band, 1)
        return Estimate(100 * value, self.losses.documents, 100 * low, 100 * high)

    @property
    def tokens(self) -> Estimate:
        """Output tokens for one document, and those at the ends of the band of exits."""
        value, half = self.losses.tokens[self.place or 0], self.band * self.losses.later_tokens
        return Estimate(value, self.losses.documents, value - half, value + half)


def choices(runs: Runs, wanted: Wanted, labels: Labels | None = None) -> list[Choice]:
    """Return the choice of each benchmark. `labels`: the gold answers of the documents that need one; None: the runs
    have scores. Raises `ArgumentError` if no benchmark has the runs."""
    return [
        choose(losses_of(runs, run, wanted, known, labels), wanted) for run, known in complete(runs, wanted, labels)
    ]


def complete(runs: Runs, wanted: Wanted, labels: Labels | None = None) -> list[tuple[Run, pd.DataFrame]]:
    """Return the run of the short answers of each benchmark, with all answers that are known of its documents.

    Raises `ArgumentError` if a call is missing everywhere, or if there are several cascades or pairs.
    """
    is_scored = wanted.loss == "score" and labels is None
    found: dict[str, tuple[Run, pd.DataFrame]] = {}
    missing = []
    for run in _short_answers(runs, wanted, is_scored):
        known = known_answers(runs, run)
        if labels is not None:
            known = labels.scored(run, known)
        elif not is_scored:
            known = known.assign(**dict.fromkeys(SCORES, 0.0))
        if (
            known.answer_logprob.isna().all()
            or _decided(run, known, wanted) is None
            or _baseline(known, wanted) is None
        ):
            missing.append(runs.name(run.method))
        elif run.benchmark in found:
            raise ArgumentError(
                f"There are several cascades on {benchmark_name(run.benchmark)}. Give the folders of one cascade and "
                "of its baselines."
            )
        else:
            _check_images(run)
            found[run.benchmark] = run, known
    pairs = {models(runs, run) for run, _ in found.values()}
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


def _short_answers(runs: Runs, wanted: Wanted, is_scored: bool) -> Iterator[Run]:
    """Yield the runs with the large model's short answers: cascades, or else the large model alone."""
    cascades = [run for run in runs.first_checks(is_scored) if has_rules(run) or run.benchmark == GENERIC.name]
    yield from cascades
    if wanted.verify == "confidence" and (wanted.thinker == "large" or not wanted.second_check):
        for run in runs.of("alone"):
            has_logprobs = len(run.samples) and run.samples.answer_logprob.notna().any() and not run.derived
            if has_logprobs and run.benchmark not in {one.benchmark for one in cascades}:
                yield run


def _decided(run: Run, known: pd.DataFrame, wanted: Wanted) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return what the cascade does with the cheapest threshold, and if it is never confident. None: a call is
    missing."""
    rules = (Rule(wanted.verify, p, run.rules, wanted.thinker, wanted.second_check) for p in (THRESHOLDS[-1], NEVER))
    cheapest, never = (decide(known, rule, run.benchmark) for rule in rules)
    return None if cheapest is None or never is None else (cheapest, never)


def _baseline(known: pd.DataFrame, wanted: Wanted) -> pd.DataFrame | None:
    """Return `answer` and `score` of the baseline. None: some are missing."""
    name = wanted.against.replace("-", "_")
    made = known.transfer.notna() if wanted.against == "full-rt" else known.large_thinking.notna()
    found = pd.DataFrame({"answer": known[name], "score": known[f"{name}_score"]})
    return None if found.score.isna().any() or not made.all() else found


def differing(run: Run, known: pd.DataFrame, wanted: Wanted) -> pd.Series:
    """Return whether an answer that the cascade may give is another text than that of the baseline. Where it is not,
    both have the same score."""
    decided, baseline = _decided(run, known, wanted), _baseline(known, wanted)
    assert decided is not None and baseline is not None  # `complete` has checked it
    texts = baseline.answer.fillna("")
    return (decided[0].answer.fillna("") != texts) | (decided[1].answer.fillna("") != texts)


def losses_of(runs: Runs, run: Run, wanted: Wanted, known: pd.DataFrame, labels: Labels | None = None) -> Losses:
    """Return what a cascade loses against the baseline. Raises `ArgumentError` if a label is missing."""
    decided, baseline = _decided(run, known, wanted), _baseline(known, wanted)
    assert decided is not None and baseline is not None  # `complete` has checked it
    if labels is not None:
        labels.check(run, differing(run, known, wanted))
    cheapest, never = decided
    if wanted.loss == "answers":
        cheapest, never = (one.assign(score=_same(run, one, baseline, wanted)) for one in decided)
        baseline = baseline.assign(score=1.0)
    samples = run.samples[run.samples.repeat == 0]
    theirs = metrics.units(samples.assign(score=baseline.score))
    places = metrics.places_of(theirs.index, runs.clusters(run))
    images = np.arange(len(theirs)) if places is None else pd.factorize(places)[0]
    first = cheapest.exit == exits_of("cascade", wanted.verify)[0]
    values, shares, tokens = [], [], []
    for threshold in THRESHOLDS:
        passed = first & known.answer_logprob.ge(math.log(threshold))
        lost = theirs - metrics.units(samples.assign(score=cheapest.score.where(passed, never.score)))
        values.append(np.bincount(images, lost) / np.bincount(images))
        shares.append(float(passed.mean()))
        tokens.append(float(cheapest.tokens.where(passed, never.tokens).mean()))
    scores = np.concatenate([baseline.score, cheapest.score, never.score])
    short = known.large_short + (0 if wanted.verify == "confidence" else known.small_short)
    return Losses(
        run=run,
        documents=len(known),
        values=np.array(values),
        is_exact=places is None and statistics.is_right_or_wrong(scores),
        first_check=np.array(shares),
        tokens=np.array(tokens),
        later_tokens=float((never.tokens - short).mean()),
        distance=_distance(runs, run, known, labels),
    )


def place_of(values: Array, is_exact: bool, wanted: Wanted) -> int | None:
    """Return the place of the last threshold before a test fails. None: the first one fails. `values`: threshold x
    image."""
    place = None
    for number, losses in enumerate(values):
        if not wanted.accepts(losses, is_exact):
            break
        place = number
    return place


def choose(losses: Losses, wanted: Wanted) -> Choice:
    """Return the cheapest threshold that keeps the promise."""
    place, needed = place_of(losses.values, losses.is_exact, wanted), None
    if place is None and losses.values[0].mean() < wanted.max_loss:
        needed = statistics.number_needed(losses.values[0], lambda drawn: wanted.accepts(drawn, losses.is_exact))
    return Choice(losses, place, needed)


def _same(run: Run, decided: pd.DataFrame, baseline: pd.DataFrame, wanted: Wanted) -> pd.Series:
    """Return 1 where the answer is the same as that of the baseline, by the benchmark's own rule, else 0. The exit
    tells whether both are one call."""
    one_call = decided.exit == {"full-rt": "transfer", "large-r": "large_think"}[wanted.against]
    return (one_call | agree(run.benchmark, decided.answer, baseline.answer, run.rules)).astype(float)


def _distance(runs: Runs, run: Run, known: pd.DataFrame, labels: Labels | None) -> Estimate | None:
    """Return the score of large R minus that of Full RT, in points. None: one of them is not known."""
    scores = known[["large_r_score", "full_rt_score"]]
    if labels is not None or run.samples.score.isna().any() or scores.isna().any(axis=None):
        return None
    large_r, full_rt = (metrics.plain(scores[name]) for name in scores)
    found = metrics.compare(large_r, full_rt, "", runs.clusters(run), is_tested=False)
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
    full_rt = wanted.against == "full-rt" or wanted.thinker == "small"
    large_r = wanted.against == "large-r" or wanted.thinker == "large"
    short = "a cascade (mode=cascade, verify=agreement)"
    if wanted.verify == "confidence" and (wanted.thinker == "large" or not wanted.second_check):
        short = "the large model's short answers (mode=large with the task's _s, or mode=cascade)"
    others = ["Full RT (mode=transfer)"] * full_rt + ["large R (mode=large with the task's _r)"] * large_r
    return (
        f"No documents{named} have all the calls: give the folders of {short}, and of {' and of '.join(others)} on the "
        "same documents, with the same models, by an engine that reports log-probabilities, and with --log_samples. "
        "The task must be one of this package, or a copy with other documents, with thinking in one stage (such as "
        "chartqa_s)."
    )


def points(value: float) -> str:
    """Return a number of points in words."""
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def promise(wanted: Wanted, found: Sequence[Choice]) -> str:
    """Return what the thresholds promise, as a sentence or two."""
    several = any(one.losses.values.shape[1] < one.losses.documents for one in found)
    unit = " per image (the mean over the questions about it)" if several else ""
    if wanted.loss == "answers":
        bound = (
            f"share of answers{unit} that differ from those of {wanted.baseline} is at most {100 * wanted.max_loss:g}%"
        )
    else:
        bound = f"score{unit} is at most {points(100 * wanted.max_loss)} below that of {wanted.baseline}"
    pope = " On POPE, the score is the accuracy, not F1." if any(one.benchmark == "pope" for one in found) else ""
    return (
        f"With a confidence of {100 * wanted.confidence:g}%, the expected {bound} on other documents of the same kind. "
        "This holds for each threshold by itself, for this pair of models, and not for the documents that chose it."
        f"{pope}"
    )


def refusal(choice: Choice, wanted: Wanted) -> str | None:
    """Return why no threshold keeps the promise, as a sentence. None: one does."""
    if choice.place is not None:
        return None
    documents, images = choice.losses.documents, choice.losses.values.shape[1]
    shown = f"{documents:,} documents" + (f" about {images:,} images" if images < documents else "")
    text = (
        f"{benchmark_name(choice.benchmark)}: {shown} cannot promise a loss of at most "
        f"{points(100 * wanted.max_loss)} with a confidence of {100 * wanted.confidence:g}%"
    )
    if choice.needed is None:
        return (
            f"{text}, and {statistics.MOST_NEEDED:,} like these could not. The tests begin with the safest threshold, "
            f"which loses {choice.loss.value:.2f} points here. Allow more with --max_loss, or try --second_check off."
        )
    return f"{text}; about {choice.needed:,} {'images' if images < documents else 'documents'} like these would do."


def choice_table(found: Sequence[Choice], wanted: Wanted) -> Iterator[Table]:
    """Yield the thresholds with their loss and their cost on the documents that chose them."""
    lost = "differs from" if wanted.loss == "answers" else "loss against"
    columns: list[Of[Choice]] = [
        Of("benchmark", "text", 0, lambda row: benchmark_name(row.benchmark)),
        Of("documents", "count", 0, lambda row: row.losses.documents),
        Of("images", "count", 0, lambda row: row.losses.values.shape[1]),
        Of("min_confidence", "text", 0, lambda row: None if row.threshold is None else repr(row.threshold)),
        Of(f"{lost} {wanted.baseline}, points", "percent", 2, lambda row: row.loss),
        Of("first check, %", "percent", 1, lambda row: row.exits),
        Of("output tokens", "number", 1, lambda row: row.tokens),
        Of("large R minus Full RT, points", "percent", 2, lambda row: row.losses.distance),
    ]
    notes = [
        "The loss has its paired 95% interval. The exits have the 95% band that holds for all thresholds at once "
        "(DKW), and the output tokens are those at its ends."
    ]
    if any(choice.place is None for choice in found):
        notes.append("Without a threshold, the row is that of the safest one.")
    return table("calibration", "The cheapest thresholds that keep the promise", columns, found, notes)
