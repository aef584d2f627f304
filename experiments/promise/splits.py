"""Splits finished runs at random: some documents choose the threshold, and the others tell what it loses.

python -m experiments.promise.splits out/mai out/full_rt out/large_r
"""

import argparse
from pathlib import Path

import numpy as np

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.threshold import BASELINES, THRESHOLDS, Losses, Promise, losses_of_runs, threshold_index
from lmms_eval_mai.method.methods import METHODS

BASELINE = {"mai_confidence": "full-rt", "mai_confidence_direct": "full-rt", "own_thinking": "large-r"}
"""Name of a method -> its baseline."""


def row(name: str, found: Losses, promise: Promise, number: int, splits: int) -> str:
    """Return the row of one method with `number` documents that choose."""
    random, documents = np.random.default_rng(number), found.values.shape[1]
    indexes, lost = [], []
    for _ in range(splits):
        order = random.permutation(documents)
        index = threshold_index(found.values[:, order[:number]], found.is_exact, promise)
        if index is not None:
            indexes.append(index)
            lost.append(100 * found.values[index, order[number:]].mean())
    refused = f"| {name} | {BASELINE[name]} | {number:,} | {100 * (1 - len(lost) / splits):.1f} |"
    if not lost:
        return f"{refused} | | | | |"
    above = sum(loss > 100 * promise.max_loss for loss in lost) / splits
    middle, exits = THRESHOLDS[int(np.median(indexes))], 100 * found.first_check[indexes].mean()
    return f"{refused} {middle:.3g} | {exits:.1f} | {np.mean(lost):.2f} | {max(lost):.2f} | {100 * above:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--documents", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--methods", nargs="+", choices=BASELINE, default=list(BASELINE))
    given = parser.parse_args()
    runs = Runs.read(given.folders)
    print("| method | against | n | refused, % | median threshold | exits, % | mean loss | largest | above 1, % |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.methods:
        promise = Promise(METHODS[name], 0.01, 0.95, BASELINES[BASELINE[name]])
        (found,) = losses_of_runs(runs, promise)
        for number in given.documents:
            print(row(name, found, promise, number, given.splits), flush=True)


if __name__ == "__main__":
    main()
