"""Whether the promise of `lmms-eval-mai calibrate` holds: random splits of the documents of finished runs.

    python benchmarks/calibration.py out/mai out/full_rt                   # 500 splits each of 300, 600 and 1,200
    python benchmarks/calibration.py out/mai out/full_rt --max_loss 2

In each split, n documents choose the threshold and the others tell its loss against Full RT. The loss may exceed
--max_loss in at most 5% of the splits. A second table has the probabilities of other documents, so that they are
useless: then only a safe threshold may be chosen, or none.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import print_json, print_table

from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.calibrate import THRESHOLDS, Losses, choose, losses_of


def splits(losses: Losses, size: int, number: int, max_loss: float, confidence: float) -> Iterator[tuple[float, float]]:
    """Yield the chosen threshold and its loss on the other documents for each split; nan and 0 if none is chosen."""
    random = np.random.default_rng(size)
    for _ in range(number):
        order = random.permutation(len(losses.clusters))
        first, rest = order[:size], order[size:]
        part = replace(
            losses,
            values={threshold: losses.values[threshold][first] for threshold in THRESHOLDS},
            clusters=losses.clusters[first],
        )
        chosen = choose(part, max_loss, confidence).threshold
        yield (np.nan, 0.0) if chosen is None else (chosen, float(losses.values[chosen][rest].mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--max_loss", type=float, default=1.0)
    parser.add_argument("--confidence", type=float, default=0.95)
    given = parser.parse_args()
    evidence, _ = build.evidence(given.folders)
    (run,) = [run for run in evidence.traced() if run.method.verify == "agreement"]
    full_rt = evidence.full_rt(run)
    assert full_rt is not None, "the folders have no Full RT"
    shuffled = np.random.default_rng(0).permutation(run.samples.answer_logprob)
    useless = replace(run, samples=run.samples.assign(answer_logprob=shuffled))
    rows, figures = [], []
    for name, one in (("own probabilities", run), ("shuffled probabilities", useless)):
        losses = losses_of(evidence, one, full_rt, "confidence")
        assert losses is not None, "calls are missing"
        for size in given.sizes:
            found = list(splits(losses, size, given.splits, given.max_loss / 100, given.confidence))
            chosen = np.array([threshold for threshold, _ in found])
            lost = np.array([loss for _, loss in found])
            refused = int(np.isnan(chosen).sum())
            exceeded = float((lost > given.max_loss / 100).mean())
            made = chosen[~np.isnan(chosen)]
            median = float(np.median(made)) if len(made) else None
            rows.append([name, f"{size:,}", str(refused), "" if median is None else f"{median:g}"])
            rows[-1] += [f"{100 * lost.mean():.2f}", f"{100 * lost.max():.2f}", f"{100 * exceeded:.1f}"]
            figures.append(
                {"probabilities": name, "n": size, "refused": refused, "median": median, "exceeded": exceeded}
            )
    print_table(
        f"{given.splits} splits of {len(run.samples):,} documents, at most {given.max_loss:g} points",
        ["probabilities", "n", "refused", "median threshold", "mean loss", "largest loss", "too much, % of splits"],
        rows,
    )
    print_json("calibration", {**vars(given), "folders": [*map(str, given.folders)], "rows": figures})


if __name__ == "__main__":
    main()
