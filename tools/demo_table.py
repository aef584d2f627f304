"""The demo's table: small S, large S, Full RT and MAI side by side, from the samples that two runs of lmms-eval logged.

    python tools/demo_table.py MAI_FOLDER FULL_RT_FOLDER

Each folder is the --output_path of a run over shapes_s with --log_samples: mode=cascade and mode=transfer. The two
short answers of a cascade are the two models' answers to the Simple prompt, so small S and large S need no run.
"""

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval.api.metrics import exact_match_hf_evaluate
from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.benchmarks import extract_answer

Record = dict[str, Any]
"""One line of lmms-eval's samples file."""


@dataclass(frozen=True)
class Row:
    """One way of answering."""

    name: str
    right: int
    samples: int
    small_tokens: int
    large_tokens: int
    seconds: float
    """Sum over calls; calls overlap."""


def read(folder: Path) -> list[Record]:
    """The samples of the newest run in `folder`."""
    files = sorted(folder.rglob("*_samples_shapes_*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise SystemExit(f"{folder} holds no samples of a shapes task: run lmms-eval there with --log_samples.")
    return [json.loads(line) for line in files[-1].read_text().split("\n") if line]


def calls_of(record: Record) -> list[Record]:
    return list(record["token_counts"][0]["calls"])


def is_right(text: str, record: Record) -> bool:
    """By the metric of the task, as its YAML sets it."""
    answers = {"predictions": [extract_answer(text)], "references": [record["target"]]}
    return bool(exact_match_hf_evaluate(**answers, ignore_case=True, ignore_punctuation=True)["exact_match"])


def short_row(name: str, side: str, records: list[Record]) -> Row:
    """One model's Simple prompt, out of a cascade."""
    calls = [(r, c) for r in records for c in calls_of(r) if (c["side"], c["stage"]) == (side, "short")]
    right = sum(is_right(call["text"], record) for record, call in calls)
    return _row(name, right, len(records), [call for _, call in calls])


def run_row(name: str, records: list[Record]) -> Row:
    """A whole run: right is what lmms-eval scored."""
    right = round(sum(record["exact_match"] for record in records))
    return _row(name, right, len(records), [call for record in records for call in calls_of(record)])


def _row(name: str, right: int, samples: int, calls: Iterable[Record]) -> Row:
    tokens, seconds = {"small": 0, "large": 0}, 0.0
    for call in calls:
        tokens[call["side"]] += call["output_tokens"]
        seconds += call["total_s"]
    return Row(name, right, samples, tokens["small"], tokens["large"], seconds)


def wilson(right: int, samples: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson's score interval)."""
    z, share = 1.96, right / samples
    middle = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    return middle - half, middle + half


def table(rows: Iterable[Row]) -> str:
    writer = MarkdownTableWriter()
    writer.headers = ["way", "accuracy %", "95% interval", "small output tokens", "large output tokens", "call seconds"]
    writer.value_matrix = []
    for row in rows:
        low, high = wilson(row.right, row.samples)
        writer.value_matrix.append(
            [
                row.name,
                f"{100 * row.right / row.samples:.1f}",
                f"{100 * low:.1f}-{100 * high:.1f}",
                str(row.small_tokens),
                str(row.large_tokens),
                f"{row.seconds:.1f}",
            ]
        )
    return writer.dumps()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mai", type=Path)
    parser.add_argument("full_rt", type=Path)
    arguments = parser.parse_args()
    mai, full_rt = read(arguments.mai), read(arguments.full_rt)
    exits = [record["token_counts"][0]["exit"] for record in mai]
    print(f"\nThe demo pair on {len(mai)} documents of shapes (a demonstration, not a benchmark result):\n")
    rows = [short_row("small S", "small", mai), short_row("large S", "large", mai)]
    print(table([*rows, run_row("Full RT", full_rt), run_row("MAI", mai)]))
    shares = (f"{exit} {exits.count(exit) / len(exits):.0%}" for exit in ("agree_short", "agree_think", "transfer"))
    print(f"MAI left by: {', '.join(shares)}.")


if __name__ == "__main__":
    main()
