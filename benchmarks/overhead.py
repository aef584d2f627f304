"""The cost of the orchestration itself, per sample and per engine call.

The engines answer at once (`engine=scripted`, `time_scale=0`), so all of the wall time is spent in this package and its
libraries. The benchmark calls `MaiCascade.generate_until` as lmms-eval does, with requests, documents with one image
each, messages, cascade, meter, progress bar and results. The exits are those of ChartQA in Table 10, which gives 2.48
calls a sample. Not measured: building the model (reading the scripts) and lmms-eval's own work (request list, scoring).

    python benchmarks/overhead.py                  # 1,000, 5,000 and 20,000 samples, 5 repeats: about a minute
    python benchmarks/overhead.py --sizes 1000 --repeats 3

Repeats are interleaved over the sizes, and the table shows medians. `CPU` is the CPU time of the process, which other
work on the machine disturbs less than the wall time. `GC` is the wall time spent in Python's garbage collector, which
does not look at objects from before the run. The target is at most 0.3 ms per engine call, and the same at every size.
"""

import argparse
import functools
import gc
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from common import GarbageClock, print_json, print_table, quiet
from lmms_eval.api.instance import Instance
from lmms_eval.models.model_utils.usage_metrics import reset_usage_metrics
from loguru import logger
from PIL import Image

from lmms_eval_mai.bench.lengths import planned_exits
from lmms_eval_mai.harness.model import MaiCascade
from lmms_eval_mai.harness.tasks import doc_to_messages
from lmms_eval_mai.paper.sample import Exit

TASK, SPLIT = "pope_s", "test"
PROMPT = {"benchmark": "pope", "variant": "s"}
DECODING = {"max_new_tokens": 4096, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": []}

# Stage -> text. The large model always answers Yes. A sample finishes when the small model also answers Yes.
THINKING = "The picture shows one plain colour and nothing else in it. " * 16
SMALL: dict[Exit, dict[str, str]] = {
    "agree_short": {"short": "[[Yes]]"},
    "agree_think": {"short": "[[No]]", "think": THINKING + "[[Yes]]"},
    "transfer": {"short": "[[No]]", "think": THINKING + "[[No]]"},
}
LARGE: dict[Exit, dict[str, str]] = {
    "agree_short": {"short": "[[Yes]]"},
    "agree_think": {"short": "[[Yes]]"},
    "transfer": {"short": "[[Yes]]", "transfer": "Yes"},
}

FORMATS = ("{:,}", "{:,}", "{:.3f}", "{:.3f}", "{:.0f}", "{:.0f}", "{:.0f}", "{:.2f}", "{:.2f}")
SECONDS = ("wall_s", "cpu_s", "gc_s")


@dataclass(frozen=True)
class Run:
    """One `generate_until` over `samples` requests."""

    samples: int
    calls: int
    wall_s: float
    cpu_s: float
    gc_s: float


@dataclass(frozen=True)
class Row:
    """The medians of all runs of one size."""

    samples: int
    calls: int
    wall_s: float
    ms_per_sample: float
    us_per_call: float
    cpu_us_per_call: float
    gc_us_per_call: float
    ratio: float
    """`us_per_call` divided by that of the smallest size. 1 means that the cost is linear in the size."""
    ratio_without_gc: float


def write_script(path: Path, exits: list[Exit], texts: dict[Exit, dict[str, str]]) -> None:
    """Write a script for the scripted engine: one JSON line per call."""
    with path.open("w") as file:
        for doc_id, exit in enumerate(exits):
            for stage, text in texts[exit].items():
                record = {"task": TASK, "doc_id": doc_id, "stage": stage, "text": text, "output_tokens": len(text) // 4}
                file.write(json.dumps(record) + "\n")


def documents(samples: int) -> list[dict[str, Any]]:
    return [
        {"question": f"Is there a dog in image {i}?", "image": Image.new("RGB", (16, 16), (i % 256, i // 256 % 256, 0))}
        for i in range(samples)
    ]


def request(doc_id: int) -> Instance:
    """Return the request that lmms-eval builds for one document of `pope_s`."""
    messages = functools.partial(doc_to_messages, lmms_eval_specific_kwargs=PROMPT)
    return Instance(
        request_type="generate_until",
        arguments=("", messages, dict(DECODING), doc_id, TASK, SPLIT),
        idx=0,
        metadata={"task": TASK, "doc_id": doc_id, "repeats": 1, "split": SPLIT, "version": 0.1, "mai": PROMPT},
    )


def run(samples: int, folder: Path, **model_args: Any) -> Run:
    """Make one run. By default engines answer at once and there is no journal; `model_args` can change this."""
    exits = planned_exits("chartqa", samples)
    write_script(folder / "small.jsonl", exits, SMALL)
    write_script(folder / "large.jsonl", exits, LARGE)
    scripts = {side: str(folder / f"{side}.jsonl") for side in ("small", "large")}
    model = MaiCascade(engine="scripted", **scripts, **{"time_scale": 0, "journal": "off", **model_args})
    model.task_dict = {TASK: {SPLIT: documents(samples)}}
    requests = [request(doc_id) for doc_id in range(samples)]
    reset_usage_metrics()  # as lmms-eval's evaluator does at the start of a run
    gc.collect()
    with quiet():
        with GarbageClock() as garbage:
            wall, cpu = time.perf_counter(), time.process_time()
            results = model.generate_until(requests)
            wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        model.clean()
    _ = model.batch_sizes  # lmms-eval reads this at the end of a run; it removes the journal
    traces = [result.token_counts.trace for result in results]
    if Counter(trace.exit for trace in traces) != Counter(exits):
        raise RuntimeError(f"The exits are not as planned: {Counter(trace.exit for trace in traces)}.")
    return Run(samples, sum(len(trace.calls) for trace in traces), wall_s, cpu_s, garbage.seconds)


def rows(runs: list[Run], sizes: list[int]) -> list[Row]:
    """Return one row per size."""
    found: list[Row] = []
    for size in sizes:
        same = [run for run in runs if run.samples == size]
        calls = same[0].calls
        wall_s, cpu_s, gc_s = (statistics.median(getattr(one, name) for one in same) for name in SECONDS)
        us, cpu_us, gc_us = (seconds / calls * 1e6 for seconds in (wall_s, cpu_s, gc_s))
        smallest = found[0] if found else None
        ratio = us / smallest.us_per_call if smallest else 1.0
        without_gc = (us - gc_us) / (smallest.us_per_call - smallest.gc_us_per_call) if smallest else 1.0
        found.append(Row(size, calls, wall_s, wall_s / size * 1e3, us, cpu_us, gc_us, ratio, without_gc))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000, 20000], help="numbers of samples")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    # With loguru's default level, DEBUG, lmms-eval logs one line per call. Its command sets INFO.
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    sizes = sorted(set(arguments.sizes))
    with tempfile.TemporaryDirectory() as folder:
        run(200, Path(folder))  # imports and first-time costs
        runs = [run(size, Path(folder)) for _ in range(arguments.repeats) for size in sizes]
    medians = rows(runs, sizes)
    print_table(
        f"Cost of the orchestration with engines that answer at once, medians of {arguments.repeats} runs",
        [
            "Samples",
            "Calls",
            "Wall s",
            "ms/sample",
            "us/call",
            "CPU us/call",
            "GC us/call",
            "Ratio",
            "Ratio without GC",
        ],
        [[form.format(value) for form, value in zip(FORMATS, astuple(row), strict=True)] for row in medians],
    )
    print_json(
        "overhead",
        {
            "repeats": arguments.repeats,
            "sizes": [asdict(row) for row in medians],
            "runs_wall_s": {str(size): [r.wall_s for r in runs if r.samples == size] for size in sizes},
        },
    )


if __name__ == "__main__":
    main()
