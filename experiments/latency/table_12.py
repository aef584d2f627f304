"""Table 12: the wall time of each method on the same documents.

    python -m experiments.latency.table_12 --pair qwen3vl-2b-8b --benchmark chartqa --output_path out/table_12

The rows of vLLM are one `lmms-eval` command each. Those of transformers are plain `generate` in this process, one
document after the other, with the small model as `assistant_model` (assisted, or speculative, decoding). The paper's
vLLM rows have 32 samples open at a time.
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
from tqdm import tqdm

from experiments.attention.documents import Documents, score_of
from lmms_eval_mai import parse
from lmms_eval_mai.analysis import read


@dataclass(frozen=True)
class Row:
    """One method."""

    key: str
    title: str
    method: str = ""
    """The cascade's method. Empty: plain transformers."""
    variant: str = "r"
    """Suffix of the task: the prompt of a model alone, and R of the cascade."""
    reference: str = "large-r"
    """The row on the same engine whose time is divided by that of this row."""


ROWS = (
    Row("large-r", "large R", "large"),
    Row("full-rt", "Full RT", "full_rt"),
    Row("mai", "MAI", "mai", "s"),
    Row("hf", "large R, transformers", reference="hf"),
    Row("hf-assisted", "large R, transformers, assisted", reference="hf"),
)


def run(folder: Path, command: Sequence[str]) -> float:
    """Run a command. Returns the seconds until it has ended, starts and stops of engines included."""
    print(shlex.join(command), flush=True)
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as file:
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode:
            sys.exit(f"The command failed. Its output is in {folder}.")
    return time.perf_counter() - began


def evaluate(row: Row, open: int, given: argparse.Namespace) -> dict[str, Any]:
    """Run one row of vLLM with one `lmms-eval` command."""
    folder = given.output_path / f"{row.key}-{open}"
    folder.mkdir(parents=True)
    arguments = f"pair={given.pair},max_open_samples={open},store=off,method={row.method}"
    command = [sys.executable, "-m", "lmms_eval", "--model", "mai_cascade"]
    command += ["--log_samples", "--output_path", str(folder)]
    command += ["--tasks", f"{given.benchmark}_{row.variant}"]
    command += ["--model_args", ",".join(filter(None, (arguments, given.model_args)))]
    command += ["--limit", str(given.limit)] if given.limit else []
    whole_s = run(folder, command)
    (file,) = folder.rglob("*_results.json")
    results, (samples, _) = json.loads(file.read_text()), read([folder])
    return {
        "answering s": (results.get("throughput") or {}).get("total_elapsed_time"),
        "whole s": whole_s,
        "samples": len(samples),
        "score %": 100 * score(next(iter(results["results"].values()))),
    }


def score(metrics: dict[str, Any]) -> float:
    """Return the main metric of a task: of ChartQA and of shapes the first one."""
    return next(value for name, value in metrics.items() if name.endswith(",none") and isinstance(value, float))


def generate(row: Row, given: argparse.Namespace) -> dict[str, Any]:
    """Answer the documents with `generate` of transformers, greedily."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    config = parse({"pair": given.pair})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    documents = Documents(f"{given.benchmark}_r")
    processor = AutoProcessor.from_pretrained(config.large.model)
    large, small = (
        AutoModelForImageTextToText.from_pretrained(engine.model, dtype="auto", device_map=device).eval()
        for engine in (config.large, config.small)
    )
    if given.num_assistant_tokens:
        small.generation_config.num_assistant_tokens = given.num_assistant_tokens
    passes: list[int] = []  # the tokens that each forward pass of the large model reads
    large.register_forward_pre_hook(lambda _, __, named: passes.append(named["input_ids"].shape[1]), with_kwargs=True)
    options: dict[str, Any] = {"max_new_tokens": config.max_new_tokens or 4096, "do_sample": False}
    options |= {"assistant_model": small} if row.key == "hf-assisted" else {}
    scores, drafted, accepted, calls = [], 0, 0, 0
    began = time.perf_counter()
    for number in tqdm(range(min(len(documents), given.limit or len(documents))), desc=row.title):
        passes.clear()
        inputs = processor.apply_chat_template(
            documents.own(number), add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(device, large.dtype)
        length = inputs["input_ids"].shape[1]
        tokens = large.generate(**inputs, **options)[0, length:]
        text = processor.decode(tokens, skip_special_tokens=True)
        scores.append(score_of(documents.results(number, text)))
        # The first pass reads the prompt and a draft, every later one the last accepted token and a draft. Each pass
        # adds one token of the large model's own to the accepted ones. A drafted end token counts as its own.
        drafted += sum(passes) - length - (len(passes) - 1)
        accepted += max(0, len(tokens) - len(passes))
        calls += len(passes)
    found = {"answering s": time.perf_counter() - began, "samples": len(scores)}
    found |= {"score %": 100 * sum(scores) / len(scores), "forward passes": calls}
    return found | ({"drafted tokens": drafted, "accepted drafts %": 100 * accepted / drafted} if drafted else {})


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
    parser.add_argument("--model_args", default="", help="more model arguments for the rows of vLLM")
    parser.add_argument(
        "--num_assistant_tokens", type=int, help="most tokens of a draft (n of Appendix B.4); default: transformers' 20"
    )
    parser.add_argument("--output_path", type=Path, default=Path("out/table_12"))
    given = parser.parse_args()
    found = []
    for open in given.open:
        for row in ROWS:
            if row.key in given.rows and (row.method or open == 1):
                named = {"key": row.key, "reference": row.reference, "method": row.title, "open": open, "whole s": None}
                found.append(named | (evaluate(row, open, given) if row.method else generate(row, given)))
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
