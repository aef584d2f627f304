"""The cost of the journal: the same scripted runs with and without it, interleaved.

    python benchmarks/journal.py                      # about four minutes
    python benchmarks/journal.py --samples 2000 --repeats 3

Timed runs have 1,000 open samples and two engines as fast as a GPU: 0.05 s to the first token, 50 tokens a second, 256
calls at a time. They show what a user waits for; the target is less than 5% more time. Instant runs have engines that
answer at once, and show the journal's own work per call. Every call is written and fsynced before its answer is used.
--folder names the folder of the journal; the default is a temporary one.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import print_json, print_table
from loguru import logger
from overhead import Run, run

PACE = {"time_scale": 1, "ttft_s": 0.05, "tokens_per_s": 50, "slots": 256, "max_open_samples": 1000}


def both(samples: int, repeats: int, folder: Path, **model_args: Any) -> tuple[list[Run], list[Run]]:
    """Return interleaved runs: those without the journal, and those with it."""
    without, journaled = [], []
    for _ in range(repeats):
        without.append(run(samples, folder, **model_args))
        journaled.append(run(samples, folder, **{**model_args, "journal": str(folder / "journal")}))
    return without, journaled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the journal (default: a temporary one)")
    arguments = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    lines, figures = [], {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        run(200, Path(name))  # imports and first-time costs
        for kind, pace in (("timed", PACE), ("instant", {"max_open_samples": 1000})):
            without, journaled = both(arguments.samples, arguments.repeats, Path(name), **pace)
            a, b = (statistics.median(one.wall_s for one in runs) for runs in (without, journaled))
            calls = journaled[0].calls
            added = (b - a) / calls * 1e6
            lines.append([kind, f"{calls:,}", f"{a:.2f}", f"{b:.2f}", f"{b / a:.3f}", f"{added:.0f}"])
            figures[kind] = {"calls": calls, "without_s": a, "with_s": b, "ratio": b / a, "us_per_call": added}
    print_table(
        f"{arguments.samples:,} samples, 1,000 open, medians of {arguments.repeats} interleaved runs",
        ["Engines", "Calls", "Without journal s", "With journal s", "Ratio", "Added us/call"],
        lines,
    )
    print_json("journal", {"samples": arguments.samples, "repeats": arguments.repeats, **figures})


if __name__ == "__main__":
    main()
