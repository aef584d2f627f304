"""Draw docs/demo-pair.svg: the learning curves that tools/train_demo_pair.py wrote.

pip install -e ".[report]"
python tools/plot_learning_curves.py DIR/small.jsonl DIR/large.jsonl docs/demo-pair.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

CURVES = {
    "S": "short answers (S) right",
    "R": "thinking (R) exactly right",
    "reference": "answers with thinking given (transfer) right",
    "cells": "cells recognised from the vision tokens",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    pyplot.rcParams["svg.hashsalt"] = "demo"  # same curves, same file
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, file in zip(axes, (arguments.small, arguments.large), strict=True):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for name, label in CURVES.items():
            points = [(line["step"], line[name]) for line in lines if name in line]
            if points:
                axis.plot(*zip(*points, strict=True), label=label)
        axis.set(title=f"{file.stem} model", xlabel="training step", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of held-out samples")
    axes[1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
