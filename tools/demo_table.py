"""Table and figure of the demo: small S, large S, Full RT and MAI, from the samples that two runs of lmms-eval logged.

    python tools/demo_table.py MAI_FOLDER FULL_RT_FOLDER

Each folder is the --output_path of a run of shapes_s with --log_samples: the first with mode=cascade, the second with
mode=transfer. Small S and large S need no runs, because the short answers of the cascade are the answers of both models
to the Simple prompt.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_figures import wilson
from lmms_eval.api.metrics import exact_match_hf_evaluate
from pytablewriter import MarkdownTableWriter

from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.paper.sample import EXITS

WIDTH = 36
"""Length of the longest bar of the figure in characters."""

Record = dict[str, Any]
"""One line of lmms-eval's samples file."""


@dataclass(frozen=True)
class Logged:
    """The newest run in a folder."""

    samples: list[Record]
    seconds: float
    """Wall time without the starts of the engines."""

    def exits(self) -> list[str]:
        """Return the exit of each sample."""
        return [record["token_counts"][0]["exit"] for record in self.samples]


@dataclass(frozen=True)
class Row:
    """One row of the table: one method."""

    name: str
    right: int
    samples: int
    small_tokens: int
    large_tokens: int
    seconds: float | None
    """Wall time. None if the method had no run of its own."""


def read(folder: Path, mode: str) -> Logged:
    """Read the newest run. Exits with a message if `folder` holds no run of shapes_s in this mode."""
    files = sorted(folder.rglob("*_samples_shapes_s.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise SystemExit(
            f"{folder} contains no samples of shapes_s. Run lmms-eval with --log_samples and --output_path {folder}."
        )
    samples = [json.loads(line) for line in files[-1].read_text().split("\n") if line]
    results = json.loads(Path(str(files[-1]).replace("_samples_shapes_s.jsonl", "_results.json")).read_text())
    run = Logged(sorted(samples, key=lambda record: record["doc_id"]), results["throughput"]["total_elapsed_time"])
    if not set(run.exits()) <= set(EXITS[mode]) or (mode == "cascade" and "agree_short" not in run.exits()):
        raise SystemExit(
            f"{files[-1]} is not from a run with mode={mode}: its exits are {', '.join(sorted(set(run.exits())))}."
        )
    return run


def calls_of(record: Record) -> list[Record]:
    """Return the calls of a sample."""
    return list(record["token_counts"][0]["calls"])


def is_right(text: str, record: Record) -> bool:
    """Score a text with the metric of the task and the options of its YAML."""
    answers = {"predictions": [extract_answer(text)], "references": [record["target"]]}
    return bool(exact_match_hf_evaluate(**answers, ignore_case=True, ignore_punctuation=True)["exact_match"])


def short_row(name: str, side: str, run: Logged) -> Row:
    """Return the row of one model with the Simple prompt, from a run of the cascade."""
    calls = [(r, c) for r in run.samples for c in calls_of(r) if (c["side"], c["stage"]) == (side, "short")]
    right = sum(is_right(call["text"], record) for record, call in calls)
    return _row(name, right, len(run.samples), [call for _, call in calls], None)


def run_row(name: str, run: Logged) -> Row:
    """Return the row of a whole run, with lmms-eval's own scores."""
    right = round(sum(record["exact_match"] for record in run.samples))
    calls = [call for record in run.samples for call in calls_of(record)]
    return _row(name, right, len(run.samples), calls, run.seconds)


def _row(name: str, right: int, samples: int, calls: Iterable[Record], seconds: float | None) -> Row:
    tokens = {"small": 0, "large": 0}
    for call in calls:
        tokens[call["side"]] += call["output_tokens"]
    return Row(name, right, samples, tokens["small"], tokens["large"], seconds)


def table(rows: Iterable[Row]) -> str:
    """Format the rows as a Markdown table."""
    writer = MarkdownTableWriter()
    writer.headers = ["method", "accuracy %", "95% interval", "small output tokens", "large output tokens", "wall s"]
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
                "" if row.seconds is None else f"{row.seconds:.1f}",
            ]
        )
    return str(writer.dumps())


def figure(rows: Sequence[Row]) -> str:
    """Draw the accuracy and the output tokens per question of each method as bars of text."""
    lines = ["accuracy %"]
    for row in rows:
        share = row.right / row.samples
        lines.append(f"  {row.name:8s}{'█' * round(WIDTH * share):{WIDTH + 1}s}{100 * share:.1f}")
    most = max(row.small_tokens + row.large_tokens for row in rows)
    lines.append("output tokens per question (░ small model, █ large model)")
    for row in rows:
        bar = "░" * round(WIDTH * row.small_tokens / most) + "█" * round(WIDTH * row.large_tokens / most)
        lines.append(f"  {row.name:8s}{bar:{WIDTH + 1}s}{(row.small_tokens + row.large_tokens) / row.samples:.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mai", type=Path)
    parser.add_argument("full_rt", type=Path)
    arguments = parser.parse_args()
    mai, full_rt = read(arguments.mai, "cascade"), read(arguments.full_rt, "transfer")
    documents = [[record["doc_id"] for record in run.samples] for run in (mai, full_rt)]
    if documents[0] != documents[1]:
        raise SystemExit(
            f"The two runs have different documents ({len(documents[0])} and {len(documents[1])} of them). Run both "
            "with the same --limit."
        )
    print(f"\nThe demo pair on {len(mai.samples)} documents of shapes (a demonstration, not a benchmark result):\n")
    rows = [short_row("small S", "small", mai), short_row("large S", "large", mai)]
    rows += [run_row("Full RT", full_rt), run_row("MAI", mai)]
    print(table(rows))
    print(figure(rows), end="\n\n")
    shares = (f"{exit} {mai.exits().count(exit) / len(mai.samples):.1%}" for exit in EXITS["cascade"])
    print(f"Exits of MAI: {', '.join(shares)}.")


if __name__ == "__main__":
    main()
