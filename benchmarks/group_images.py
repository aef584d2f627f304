"""Images read once: calls that read their picture anew, with and without `group_images`.

One model answers all questions of some tasks twice: in the order of the file, and with questions about one image next
to each other. The engine's cache holds about a hundred pictures, as on a GPU whose memory is nearly full. A call reads
its picture anew if the engine took fewer tokens from its cache than the picture fills of its blocks.

    python benchmarks/group_images.py --data FOLDER                   # POPE and MMBench, all questions
    python benchmarks/group_images.py --data FOLDER --limit 600       # about a minute

`FOLDER` has data sets in the layout of lmms-eval's own (`lmms-lab-encoder/<Name>`). The pictures are enlarged to 448 x
448 pixels. The model is a tiny random one, so its answers mean nothing, and the wall time has little of a vision tower.

2026-11-24, official questions, made-up pictures, 2 cores of an AMD EPYC: `pope_s` read 500 pictures anew in place of
1,500, and computed 461,248 prompt tokens in place of 777,184; `mmbench_en_dev_s` 1,176 in place of 4,377, and 994,148
in place of 1,816,004. Answers were equal.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from common import print_json, print_table
from datasets import Dataset, Image, disable_progress_bars

from lmms_eval_mai.analysis import read

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]
from support.make_tiny import make_pair  # noqa: E402 - found by the line before

TASKS = {"pope_s": "POPE", "mmbench_en_dev_s": "MMBench"}
"""Task -> its data set."""
SIDE = 448
BLOCK = 32
"""Tokens of a block of the cache. Only whole blocks are found again."""
PICTURE_TOKENS = 196 // BLOCK * BLOCK
"""A picture of 448 x 448 pixels has one token for 32 x 32 pixels; these fill whole blocks."""


def enlarge(source: Path, target: Path) -> None:
    """Write a copy of the data sets with larger pictures. One picture is enlarged once, so its copies stay equal."""
    known: dict[bytes, Any] = {}

    def larger(row: dict[str, Any]) -> dict[str, Any]:
        cell = row["image"]
        if cell is None:
            return {"image": None}
        if cell["bytes"] not in known:
            picture = Image().decode_example(cell).convert("RGB").resize((SIDE, SIDE))
            known[cell["bytes"]] = Image().encode_example(picture)
        return {"image": known[cell["bytes"]]}

    for file in source.rglob("*.parquet"):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = Dataset.from_parquet(str(file), cache_dir=str(target / ".cache")).cast_column(
            "image", Image(decode=False)
        )
        rows.map(larger, load_from_cache_file=False).cast_column("image", Image()).to_parquet(place)
    for file in source.rglob("README.md"):
        shutil.copy(file, target / file.relative_to(source))


def make_model(folder: Path) -> Path:
    """Write a tiny random Qwen3-VL that reads pictures of 448 x 448 pixels as they are."""
    _, large = make_pair(folder)
    for name in ("preprocessor_config.json", "processor_config.json"):
        file = large / name
        found = json.loads(file.read_text())
        found.get("image_processor", found)["size"]["longest_edge"] = SIDE * SIDE
        file.write_text(json.dumps(found))
    return large


def run(data: Path, output: Path, task: str, model_args: str, limit: int | None) -> tuple[float, pd.DataFrame]:
    """Evaluate the task in a new process. Returns its wall time in seconds, and for each document its call and its
    `answer`."""
    command = [sys.executable, "-m", "lmms_eval", "--model", "mai_cascade", "--model_args", model_args]
    command += ["--tasks", task, "--log_samples", "--output_path", str(output)]
    command += ["--limit", str(limit)] if limit else []
    environment = os.environ | {"HF_HOME": str(data / ".home")}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=data, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    wall = time.perf_counter() - started
    (samples,) = output.rglob("*_samples_*.jsonl")
    with samples.open(encoding="utf-8") as lines:
        answers = {line["doc_id"]: str(line["filtered_resps"]) for line in map(json.loads, lines)}
    calls = read([output]).calls
    return wall, calls.assign(answer=calls.doc_id.map(answers)).sort_values("doc_id", ignore_index=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with lmms-lab-encoder/<Name>")
    parser.add_argument("--limit", type=int, help="questions of each task")
    parser.add_argument("--blocks", type=int, default=1000, help=f"of the cache, of {BLOCK} tokens each")
    parser.add_argument("--open_samples", type=int, default=16)
    given = parser.parse_args()
    rows, figures = [], {}
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in TASKS.values():
            place = Path("lmms-lab-encoder", name)
            enlarge(given.data.resolve() / place, folder / "data" / place)
        fixed = (
            f"method=large,large={make_model(folder / 'tiny')},dtype=float32,max_new_tokens=4,max_model_len=2048,"
            f"num_gpu_blocks_override={given.blocks},max_open_samples={given.open_samples},store=off"
        )
        for task in TASKS:
            found = {}
            for grouped in (False, True):
                model_args = f"{fixed},group_images={str(grouped).lower()}"
                wall, calls = run(folder / "data", folder / f"{task}-{grouped}", task, model_args, given.limit)
                anew = int((calls.cached_tokens < PICTURE_TOKENS).sum())
                found[grouped] = calls
                figures[f"{task}, {'grouped' if grouped else 'order of the file'}"] = {
                    "calls": len(calls),
                    "anew": anew,
                    "computed_tokens": int((calls.prompt_tokens - calls.cached_tokens).sum()),
                    "wall_s": wall,
                    "equal_answers": int((calls.answer == found[False].answer).sum()),
                }
    for title, values in figures.items():
        rows.append([title, *(f"{value:,.0f}" for value in values.values())])
    headers = ["task", "calls", "read their picture anew", "computed prompt tokens", "wall s", "answers equal"]
    print_table("Images read once", headers, rows)
    print_json("group_images", figures)


if __name__ == "__main__":
    main()
