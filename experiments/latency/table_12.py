"""Table 12: the wall time of each method on the same documents, each with one `lmms-eval` command.

    python experiments/latency/table_12.py --pair qwen3vl-2b-8b --benchmark chartqa --output_path out/table_12

The paper's vLLM rows have 32 samples open at a time, and its rows of transformers one.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lmms_eval_mai import parse
from lmms_eval_mai.analysis import read

TRANSFORMERS = "method=large,engine=transformers"


@dataclass(frozen=True)
class Row:
    """One method."""

    key: str
    title: str
    model_args: str
    variant: str
    """Suffix of the task: the prompt of a model alone, and R of the cascade."""
    open: Sequence[int] = (1, 32)
    """Samples that are open at a time."""
    reference: str = "large-r"
    """The row on the same engine whose time is divided by that of this row."""


ROWS = (
    Row("large-r", "large R", "method=large", "r"),
    Row("full-rt", "Full RT", "method=full_rt", "r"),
    Row("mai", "MAI", "method=mai", "s"),
    Row("hf", "large R, transformers", TRANSFORMERS, "r", (1,), "hf"),
    Row(
        "hf-assisted",
        "the same, assisted; the draft model does not see the images (as transformers does by itself)",
        TRANSFORMERS + ",large_assistant_model={small},large_assistant_images=false",
        "r",
        (1,),
        "hf",
    ),
    Row(
        "hf-assisted-images",
        "the same, assisted; the draft model sees the images (ours)",
        TRANSFORMERS + ",large_assistant_model={small}",
        "r",
        (1,),
        "hf",
    ),
)


def run(folder: Path, command: Sequence[str]) -> float:
    """Run a command. Returns the seconds until it has ended, starts and stops of engines included."""
    print(shlex.join(command), flush=True)
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as file:
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"The command failed. Its output is in {folder}.")
    return time.perf_counter() - began


def evaluate(row: Row, open: int, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one row with one `lmms-eval` command."""
    small = parse({"pair": given.pair}).small.model
    arguments = f"pair={given.pair},max_open_samples={open},store=off,{row.model_args.format(small=small)}"
    command = [sys.executable, "-m", "lmms_eval", "--model", "mai_cascade"]
    command += ["--log_samples", "--output_path", str(folder)]
    command += ["--tasks", f"{given.benchmark}_{row.variant}"]
    command += ["--model_args", ",".join(filter(None, (arguments, given.model_args)))]
    command += ["--limit", str(given.limit)] if given.limit else []
    whole_s = run(folder, command)
    (file,) = folder.rglob("*_results.json")
    results, (samples, calls) = json.loads(file.read_text()), read([folder])
    proposed, accepted = (calls[name].sum() for name in ("proposed_tokens", "accepted_tokens"))
    return {
        "answering s": (results.get("throughput") or {}).get("total_elapsed_time"),
        "whole s": whole_s,
        "samples": len(samples),
        "score %": 100 * score(next(iter(results["results"].values()))),
        "accepted drafts %": 100 * accepted / proposed if proposed else None,
    }


def score(metrics: dict[str, Any]) -> float:
    """Return the main metric of a task: of ChartQA and of shapes the first one."""
    return next(value for name, value in metrics.items() if name.endswith(",none") and isinstance(value, float))


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the table, with the ratio of the times of the reference and of each row."""
    rows = pd.DataFrame(found)
    for column in ("answering s", "whole s"):
        by_key = rows.set_index(["key", "open"])[column]
        pairs = zip(rows["reference"], rows["open"], strict=True)
        rows[f"reference / row, {column[:-2]}"] = [by_key.get(pair) for pair in pairs] / rows[column]
    rows["s per sample, whole"] = rows["whole s"] / rows["samples"]
    return rows.drop(columns=["key", "reference"]).round(3).to_markdown(index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    keys = [row.key for row in ROWS]
    parser.add_argument("--pair", default="qwen3vl-2b-8b", help="a named pair, or the path of a YAML file")
    parser.add_argument("--benchmark", default="chartqa", help="chartqa, or shapes for the demo pair")
    parser.add_argument("--limit", type=int, help="documents; default: all")
    parser.add_argument(
        "--open", type=int, nargs="+", choices=(1, 32), default=[1, 32], help="samples open at a time; default: 1 32"
    )
    parser.add_argument("--rows", nargs="+", choices=keys, default=keys, help="default: all")
    parser.add_argument("--model_args", default="", help="more model arguments for all rows")
    parser.add_argument("--output_path", type=Path, default=Path("out/table_12"))
    given = parser.parse_args()
    found = []
    for open in given.open:
        for row in ROWS:
            if row.key in given.rows and open in row.open:
                folder = given.output_path / f"{row.key}-{open}"
                folder.mkdir(parents=True)
                named = {"key": row.key, "reference": row.reference, "method": row.title, "open": open}
                found.append(named | evaluate(row, open, given, folder))
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
