"""Draws documents from populations whose true loss is known, and counts how often `calibrate` promises too much.

    python -m experiments.promise.planted
    python -m experiments.promise.planted --looks

A population is 20,000 images, or more. Each question has the probability of the large model's short answer, and the
loss if the method returns this answer; if not, its loss is 0, as with mai_confidence_direct. A sample is drawn with
replacement, so the true loss of a threshold is that of the population.

`--looks`: somebody looks at the same documents again, or documents have near duplicates. The true loss is just above
the limit, so each promise is false. Looks: at 300, 450 and so on to 1,200 documents, and at three methods on 1,200
documents. Near duplicates: 2 or 3 copies of each of 1,200 documents, counted as others.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lmms_eval_mai.analysis.threshold import BASELINES, THRESHOLDS, Promise, accepts, threshold_index
from lmms_eval_mai.method.methods import MAI_CONFIDENCE_DIRECT

Array = npt.NDArray[np.float64]
IMAGES = 20_000
DOCUMENTS = 1200
"""Documents of `--looks`."""
PROMISE = Promise(MAI_CONFIDENCE_DIRECT, max_loss=0.01, confidence=0.95, baseline=BASELINES["full-rt"])


@dataclass(frozen=True)
class Population:
    """The loss of each image at each threshold, and the test that `calibrate` would use."""

    values: Array
    """Threshold x image."""
    per_question: Array
    """The true loss of a question at each threshold."""
    is_exact: bool


def population(logit: Array, loss: Array, sizes: npt.NDArray[np.int64] | None = None) -> Population:
    """Return the population of questions with these logits of the probability and these losses, for images with these
    numbers of questions. None: one question each."""
    is_exact = sizes is None and bool(np.isin(loss, (-1, 0, 1)).all())
    sizes = np.ones(len(loss), dtype=np.int64) if sizes is None else sizes
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    passed = (np.where(logit >= math.log(p / (1 - p)), loss, 0.0) for p in THRESHOLDS)
    rows = [(np.add.reduceat(one, starts) / sizes, one.mean()) for one in passed]
    return Population(np.array([row for row, _ in rows]), np.array([mean for _, mean in rows]), is_exact)


def at_the_limit(gain: float, value: float = 1.0) -> Population:
    """All documents have the same probability, and the loss is just above the limit: the test alone decides."""
    gained = int(gain * IMAGES)
    lost = math.ceil(PROMISE.max_loss * IMAGES / value) + gained + 1
    loss = np.repeat([value, -value, 0.0], [lost, gained, IMAGES - lost - gained])
    return population(np.full(IMAGES, 20.0), loss)


def drawn(logit_of: Callable[[np.random.Generator, int], Array], right_of: Callable[[Array], Array]) -> Population:
    """Documents with drawn logits. `right_of`: the chance that the short answer is right, by the logit. The baseline is
    right in 96% of the documents, independently."""
    random = np.random.default_rng(1)
    logit = logit_of(random, IMAGES)
    short, base = random.random(IMAGES) < right_of(logit), random.random(IMAGES) < 0.96
    return population(logit, base.astype(float) - short)


def chance(logit: Array) -> Array:
    """Return the probability with this logit."""
    return 1 / (1 + np.exp(-logit))


def clusters(sizes: npt.NDArray[np.int64], large_lose: bool) -> Population:
    """Images whose loss is just above the limit, in equal parts at two logits. `large_lose`: the images with the most
    questions lose all of them; else any image loses half of its questions."""
    number, share = len(sizes), 1.0 if large_lose else 0.5
    lost = math.ceil(PROMISE.max_loss * number / share) + 1
    order = np.argsort(-sizes, kind="stable") if large_lose else np.random.default_rng(2).permutation(number)
    of_image = np.zeros(number)
    of_image[order[:lost]] = share
    return population(np.full(int(sizes.sum()), 20.0), np.repeat(of_image, sizes), sizes)


def populations() -> dict[str, Population]:
    """Return all populations by name."""
    random = np.random.default_rng(3)
    geometric = random.geometric(0.25, IMAGES)
    zipf = np.minimum(random.zipf(2.0, IMAGES), 50)
    rare = np.where(np.arange(IMAGES) % 2000, 1, 50)
    return {
        "0/1, no gains, at the limit": at_the_limit(0.0),
        "0/1, gains 0.57%, at the limit": at_the_limit(0.0057),
        "0/1, gains 5%, at the limit": at_the_limit(0.05),
        "ANLS (steps of 0.6), at the limit": at_the_limit(0.0057, 0.6),
        "18 questions about each image, at the limit": clusters(np.full(IMAGES, 18), large_lose=False),
        "geometric cluster sizes, at the limit": clusters(geometric, large_lose=False),
        "Zipf cluster sizes, the largest images lost": clusters(zipf, large_lose=True),
        "1 image in 2,000 has 50 questions, all lost": population(
            np.full(int(rare.sum()), 20.0), np.repeat(rare > 1, rare).astype(float), rare
        ),
        "calibrated p": drawn(lambda random, n: random.normal(3.5, 2, n), chance),
        "overconfident p (63% above 0.999)": drawn(
            lambda random, n: random.normal(9, 6.5, n), lambda logit: chance(logit / 3)
        ),
        "62% at p = 1, which lose 1.9 points": drawn(
            lambda random, n: np.where(random.random(n) < 0.62, 30.0, random.normal(2, 2, n)),
            lambda logit: np.where(logit > 20, 0.93, chance(logit)),
        ),
        "useless p": drawn(lambda random, n: random.normal(3, 3, n), lambda logit: np.full(len(logit), 0.86)),
    }


def row(name: str, planted: Population, number: int, samples: int) -> str:
    """Return the row of a population with samples of `number` images."""
    random, indexes = np.random.default_rng(number), []
    for _ in range(samples):
        chosen = random.integers(planted.values.shape[1], size=number)
        indexes.append(threshold_index(planted.values[:, chosen], planted.is_exact, PROMISE))
    made = np.array([index for index in indexes if index is not None], dtype=int)
    refused = 100 * (1 - len(made) / samples)
    true = planted.values.mean(axis=1)[made], planted.per_question[made]
    false, of_questions = (100 * float((loss > PROMISE.max_loss).sum()) / samples for loss in true)
    test = "exact" if planted.is_exact else "bets"
    return f"| {name} | {test} | {number:,} | {refused:.1f} | {false:.1f} | {of_questions:.1f} |"


def looks(draw: Callable[[int], Array]) -> dict[str, list[Array]]:
    """Return the losses that are tested, one look after another, by what somebody does. `draw`: draws documents."""
    drawn = draw(DOCUMENTS)
    return {
        "one look": [drawn],
        "seven numbers of documents": [drawn[:number] for number in range(300, DOCUMENTS + 1, 150)],
        "three methods": [draw(DOCUMENTS) for _ in range(3)],
        "2 copies of each": [np.repeat(draw(DOCUMENTS // 2), 2)],
        "3 copies of each": [np.repeat(draw(DOCUMENTS // 3), 3)],
    }


def print_looks(samples: int) -> None:
    """Print the table of `--looks`."""
    print("| gains, % | what | false, % | false with 1 - 5%/N, % |")
    print("|---:|---|---:|---:|")
    for gain in (0.0, 0.0057, 0.05):
        losses, random = at_the_limit(gain).values[0], np.random.default_rng(11)
        drawn = [looks(lambda number: random.choice(losses, number)) for _ in range(samples)]  # noqa: B023
        for name in drawn[0]:
            number = len(drawn[0][name])
            false = [
                sum(any(accepts(one, True, promise) for one in sample[name]) for sample in drawn)
                for promise in (PROMISE, replace(PROMISE, confidence=1 - (1 - PROMISE.confidence) / number))
            ]
            shown = [f"{100 * one / samples:.1f}" for one in false]
            print(f"| {100 * gain:g} | {name} | {shown[0]} | {shown[1] if number > 1 else ''} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--images", type=int, nargs="+", default=[600, 1200])
    parser.add_argument("--looks", action="store_true", help="print the table of looks and near duplicates")
    given = parser.parse_args()
    if given.looks:
        return print_looks(given.samples)
    print("| population | test | images | refused, % | false, % | false per question, % |")
    print("|---|---|---:|---:|---:|---:|")
    for name, planted in populations().items():
        for number in given.images:
            print(row(name, planted, number, given.samples), flush=True)


if __name__ == "__main__":
    main()
