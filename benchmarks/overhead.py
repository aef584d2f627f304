"""The cost of the orchestration itself, per sample and per engine call.

The engines answer at once (`engine=scripted`, `time_scale=0`), so all of the wall time is spent in this package and its
libraries. The benchmark calls `MaiCascade.generate_until` as lmms-eval does, with requests, documents with one image
each, messages, cascade, totals, progress bar and results. The exits are those of ChartQA in Table 10, which gives 2.48
calls a sample. Not measured: building the model (reading the scripts) and lmms-eval's own work (request list, scoring).

    python benchmarks/overhead.py                        # 1,000, 5,000 and 20,000 samples, 5 repeats: about a minute
    python benchmarks/overhead.py --sizes 1000 --repeats 3 --store   # with a call store, in a temporary folder

Repeats are interleaved over the sizes, and the table shows medians. `CPU` is that of the process: other work disturbs
it less than the wall time. The target is at most 0.3 ms per engine call, and the same at every size. On 2026-11-22, on
2 cores of an AMD EPYC, it was 71 µs with 5,000 samples, and 84 with 20,000.
"""

import argparse
import contextlib
import gc
import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import print_json, print_table
from lmms_eval.api.instance import Instance
from lmms_eval.models.model_utils.usage_metrics import reset_usage_metrics
from loguru import logger
from PIL import Image

from lmms_eval_mai.harness.model import MaiCascade
from lmms_eval_mai.harness.tasks import doc_to_messages

TASK, SPLIT = "pope_s", "test"
PROMPT = {"benchmark": "pope", "variant": "s"}
DECODING = {"max_new_tokens": 4096, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": []}

EXITS = {"agree_short": 0.72, "agree_think": 0.078, "transfer": 0.202}
"""Shares of ChartQA in Table 10."""

THINKING = "The picture shows one plain colour and nothing else in it. " * 16
# Prompt -> text. The large model always answers Yes. A sample finishes when the small model also answers Yes.
SMALL = {
    "agree_short": {"simple": "[[Yes]]"},
    "agree_think": {"simple": "[[No]]", "think": THINKING + "[[Yes]]"},
    "transfer": {"simple": "[[No]]", "think": THINKING + "[[No]]"},
}
LARGE = {exit: {"simple": "[[Yes]]", "transfer": "Yes"} for exit in EXITS}


def write_script(path: Path, exits: list[str], texts: dict[str, dict[str, str]]) -> None:
    """Write a script for the scripted engine: one JSON line per call."""
    with path.open("w") as file:
        for doc_id, exit in enumerate(exits):
            for prompt, text in texts[exit].items():
                of_call = {"prompt": prompt, "text": text, "output_tokens": len(text) // 4}
                file.write(json.dumps({"task": TASK, "doc_id": doc_id, **of_call}) + "\n")


def documents(samples: int) -> list[dict[str, Any]]:
    return [
        {"question": f"Is there a dog in image {i}?", "image": Image.new("RGB", (16, 16), (i % 256, i // 256 % 256, 0))}
        for i in range(samples)
    ]


class Task:
    """What a request needs of `pope_s`."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.eval_docs_no_media = documents

    def messages(self, doc: dict[str, Any]) -> Any:
        return doc_to_messages(doc, lmms_eval_specific_kwargs=PROMPT)

    def doc_to_text(self, doc: dict[str, Any]) -> None:
        """Return None: no `--system_instruction` stands before it."""


def request(task: Task, doc_id: int) -> Instance:
    """Return the request that lmms-eval builds for one document of `pope_s`."""
    return Instance(
        request_type="generate_until",
        arguments=("", task.messages, dict(DECODING), doc_id, TASK, SPLIT),
        idx=0,
        metadata={"task": TASK, "doc_id": doc_id, "repeats": 1, "split": SPLIT, "version": 0.1, "mai": PROMPT},
    )


def run(samples: int, folder: Path, store: str) -> tuple[int, float, float]:
    """Make one run with engines that answer at once. Returns its calls, wall seconds and CPU seconds."""
    exits = [exit for exit, share in EXITS.items() for _ in range(round(share * samples))]
    random.Random(0).shuffle(exits)
    write_script(folder / "small.jsonl", exits, SMALL)
    write_script(folder / "large.jsonl", exits, LARGE)
    scripts = {side: str(folder / f"{side}.jsonl") for side in ("small", "large")}
    model = MaiCascade(engine="scripted", **scripts, time_scale=0, store=store)
    task = Task(documents(len(exits)))
    model.task_dict = {TASK: {SPLIT: task.eval_docs_no_media}}
    requests = [request(task, doc_id) for doc_id in range(len(exits))]
    reset_usage_metrics()  # as lmms-eval's evaluator does at the start of a run
    gc.collect()
    # The progress bar and the model's table are made, and their time counts.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        wall, cpu = time.perf_counter(), time.process_time()
        results = model.generate_until(requests)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        model.clean()
        model.close()  # removes the store
    traces = [result.token_counts.trace for result in results]
    if Counter(trace.exit for trace in traces) != Counter(exits):
        raise RuntimeError(f"The exits are not as planned: {Counter(trace.exit for trace in traces)}.")
    return sum(len(trace.calls) for trace in traces), wall_s, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000, 20000], help="numbers of samples")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--store", action="store_true", help="write each call to a call store")
    arguments = parser.parse_args()
    # With loguru's default level, DEBUG, lmms-eval logs one line per call. Its command sets INFO.
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    runs: dict[int, list[tuple[int, float, float]]] = {size: [] for size in sorted(arguments.sizes)}
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store" if arguments.store else "off"
        run(200, Path(folder), store)  # imports and first-time costs
        for size in list(runs) * arguments.repeats:
            runs[size].append(run(size, Path(folder), store))
    found: dict[int, dict[str, float]] = {}
    for size, of_size in runs.items():
        calls, wall, cpu = (statistics.median(figures) for figures in zip(*of_size, strict=True))
        found[size] = {"calls": calls, "wall_us": wall / calls * 1e6, "cpu_us": cpu / calls * 1e6}
    smallest = next(iter(found.values()))["wall_us"]
    print_table(
        f"Cost of the orchestration with engines that answer at once, medians of {arguments.repeats} runs",
        ["samples", "calls", "wall us/call", "CPU us/call", "wall, relative to the first"],
        [
            [f"{size:,}", *(f"{value:,.0f}" for value in row.values()), f"{row['wall_us'] / smallest:.2f}"]
            for size, row in found.items()
        ],
    )
    print_json("overhead", {"repeats": arguments.repeats, "sizes": found})


if __name__ == "__main__":
    main()
