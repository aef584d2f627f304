"""Counts false promises where somebody looks at the same documents again, or where documents have near duplicates.

    python -m experiments.promise.looks

The true loss is just above the limit, so each promise is false. Looks: at 300, 450 and so on to 1,200 documents, and at
three methods on 1,200 documents. Near duplicates: 2 or 3 copies of each of 1,200 documents, counted as others.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from experiments.promise.planted import PROMISE, at_the_limit
from lmms_eval_mai.reports.calibrate import accepts

Array = npt.NDArray[np.float64]
DOCUMENTS = 1200


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    given = parser.parse_args()
    print("| gains, % | what | false, % | false with --looks, % |")
    print("|---:|---|---:|---:|")
    for gain in (0.0, 0.0057, 0.05):
        losses, random = at_the_limit(gain).values[0], np.random.default_rng(11)
        samples = [looks(lambda number: random.choice(losses, number)) for _ in range(given.samples)]  # noqa: B023
        for name in samples[0]:
            number = len(samples[0][name])
            false = [
                sum(any(accepts(one, True, promise) for one in sample[name]) for sample in samples)
                for promise in (PROMISE, replace(PROMISE, looks=number))
            ]
            shown = [f"{100 * one / given.samples:.1f}" for one in false]
            print(f"| {100 * gain:g} | {name} | {shown[0]} | {shown[1] if number > 1 else ''} |", flush=True)


if __name__ == "__main__":
    main()
