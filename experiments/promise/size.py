"""The size of the exact test of `calibrate`: the largest chance that it accepts a loss at the limit.

python -m experiments.promise.size
"""

import argparse

import numpy as np
import numpy.typing as npt
from scipy import stats

from lmms_eval_mai.statistics import paired_loss_p_value

Array = npt.NDArray[np.float64]
RATES = 10_000
"""Numbers of gain rates from each end, and between: the test itself uses 402."""


def least_gains(number: int, most: float, level: float) -> Array:
    """Return, for each number of losses, the least number of gains with which the test accepts."""
    least, gains = np.full(number + 1, number + 1.0), 0
    for lost in range(number + 1):  # one more loss needs more gains
        while gains <= number - lost and paired_loss_p_value(lost, gains, number, most) > level:
            gains += 1
        if gains > number - lost:
            break
        least[lost] = gains
    return least


def size(number: int, most: float, level: float) -> float:
    """Return the size of the test of a loss of `most` with `number` documents, over a fine grid of gain rates."""
    lost, least, largest = np.arange(number + 1), least_gains(number, most, level), (1 - most) / 2
    low = np.geomspace(0.001 / number, largest / 2, RATES)
    rates = np.concatenate([[0.0, largest], low, largest - low, np.linspace(0, largest, RATES)])
    chances = []
    for some in np.array_split(rates[:, None], 300):  # for the memory
        others = np.minimum(1, some / (1 - some - most))
        ways = stats.binom.pmf(lost, number, some + most) * stats.binom.sf(least - 1, number - lost, others)
        chances.append(ways.sum(axis=1).max())
    return float(max(chances))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_loss", type=float, default=0.01)
    parser.add_argument("--level", type=float, default=0.05)
    parser.add_argument("--documents", type=int, nargs="+", default=[299, 300, 340, 491, 600, 1200])
    given = parser.parse_args()
    print("| documents | size, % |")
    print("|---:|---:|")
    for number in given.documents:
        print(f"| {number:,} | {100 * size(number, given.max_loss, given.level):.3f} |", flush=True)


if __name__ == "__main__":
    main()
