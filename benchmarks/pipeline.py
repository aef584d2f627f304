"""Compares the wall time of four schedules for the same calls.

Two real vLLM engines with the tiny pair of `tools/make_tiny_pair.py` answer the same samples. Output lengths and exits
are forced to those of ChartQA in the paper (`lmms_eval_mai/bench/lengths.py`). So the schedules differ only in the
order of the calls and in the engines that get them:

    cascade   this package: every sample runs independently (`run_samples`, `cascade`), on two persistent engines
    staged    the same calls on the same engines, with a barrier between the stages: first all short answers on both
              engines, then all thinking, then all transfers
    bound     the same calls on the same engines, all at once, because the text of the thinking is planned. This is the
              time that the engines need for the work alone. It is not a strict minimum: engines process calls in the
              order of arrival, and share the cores of the machine
    fresh     the paper's prototype (B.4): every stage starts its own engines in their own processes and stops them at
              its end; stage 1 has both models at once. All time of the processes counts, as in the paper. Starts and
              stops take a constant time, so they matter less with more samples. Therefore the output also has the
              seconds spent answering, and the ratio to a cascade that includes one start and stop of its two engines

    python benchmarks/pipeline.py                                  # about 10 minutes on 2 cores
    python benchmarks/pipeline.py --samples 100 --repeats 1 --skip-fresh

Runs of the four schedules are interleaved, and the table shows medians. The time to open the samples (decode, hash)
counts in every schedule. The caches of the engines are cleared before each run, so no run profits from an earlier one,
while the calls of one sample share the cached image and question, as in real use. `Machine busy` is the used share of
all cores. Near 100% the machine is the limit, and a better order of the work cannot save much time.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from common import print_json, print_table
from loguru import logger
from make_tiny_pair import make_pair

from lmms_eval_mai.bench.documents import Documents, DrawnSource
from lmms_eval_mai.bench.drawn import Charts
from lmms_eval_mai.bench.engines import config_of, planned
from lmms_eval_mai.bench.lengths import make_plan
from lmms_eval_mai.bench.pair import run_all, run_bound, run_mode
from lmms_eval_mai.bench.planned import answer, prompts_of
from lmms_eval_mai.bench.prototype import run_prototype
from lmms_eval_mai.engines.base import SIDES, Engine, Prompt, Stage
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.paper.sample import Sample

CHECKPOINTS = Path(__file__).resolve().parents[1] / ".checkpoints" / "tiny"
ARGUMENTS = {"max_num_seqs": 32, "max_model_len": 4096}
"""The arguments of both engines. 32 is the paper's batch size (B.4)."""
MEGAPIXELS = 0.04

Engines = Sequence[Engine]


@dataclass(frozen=True)
class Run:
    """One run with one schedule."""

    schedule: str
    wall_s: float
    busy: float
    """The used share of all cores."""
    answering_s: float | None = None
    """`fresh` only: seconds in which the engines answered, summed over the stages."""


@dataclass(frozen=True)
class Measured:
    """All runs, and the seconds for one start and one stop of the two persistent engines."""

    runs: list[Run]
    start_s: float
    stop_s: float


# --- The schedules of persistent engines ----------------------------------------------------------------


async def run_cascade(engines: Engines, documents: Documents) -> None:
    """Run every sample independently."""
    await run_mode("cascade", engines, documents, "max")


async def run_staged(engines: Engines, documents: Documents) -> None:
    """Run all samples stage by stage."""
    later: dict[Stage, list[Prompt]] = defaultdict(list)
    assert documents.plan is not None

    async def first_stage(sample: Sample) -> None:
        prompts = await prompts_of(sample, documents.plan)
        for prompt in prompts:
            later[prompt.key.stage].append(prompt)
        await answer(engines, [prompt for prompt in prompts if prompt.key.stage == "short"])

    await run_all(documents.count, documents.open, first_stage, lambda *_: None, documents.count)
    await answer(engines, later["think"])
    await answer(engines, later["transfer"])


async def run_at_once(engines: Engines, documents: Documents) -> None:
    """Make all calls of all samples at once."""
    await run_bound(engines, documents)


# --- Measuring -----------------------------------------------------------------------------------------

PERSISTENT: dict[str, Callable[[Engines, Documents], Awaitable[None]]] = {
    "cascade": run_cascade,
    "staged": run_staged,
    "bound": run_at_once,
}


async def measure(arguments: dict[str, Any], samples: int, repeats: int, fresh: bool) -> Measured:
    """Make all runs. `arguments`: model arguments."""
    source = DrawnSource(Charts.draw(samples, MEGAPIXELS))
    documents = Documents(source, samples, make_plan("chartqa", samples), arguments)
    engines = planned([build(*config_of(side, arguments, 1)) for side in SIDES], documents.plan)
    runs: list[Run] = []
    began = time.perf_counter()
    try:
        for engine in engines:
            await engine.start()
        start_s = time.perf_counter() - began
        await run_cascade(engines, documents.first(64))  # first-time costs
        for repeat in range(repeats):
            for schedule, run in PERSISTENT.items():
                for engine in engines:
                    await engine.clear_caches()
                runs.append(await timed(schedule, run(engines, documents)))
            if fresh:
                runs.append(await timed("fresh", run_prototype(documents, arguments)))
            logger.info(
                f"Repeat {repeat + 1}: " + ", ".join(f"{r.schedule} {r.wall_s:.1f} s" for r in runs[-3 - fresh :])
            )
    finally:
        began = time.perf_counter()
        for engine in engines:
            await engine.close()
    return Measured(runs, start_s, time.perf_counter() - began)


async def timed(schedule: str, running: Awaitable[float | None]) -> Run:
    """Measure the wall time of one run, and the used share of all cores."""
    before, began = psutil.cpu_times(), time.perf_counter()
    answering_s = await running
    wall_s, after = time.perf_counter() - began, psutil.cpu_times()
    idle_s = after.idle + after.iowait - before.idle - before.iowait
    return Run(schedule, wall_s, 1 - idle_s / (wall_s * psutil.cpu_count()), answering_s)


def show_progress() -> None:
    """Log to stderr."""
    logger.remove()
    logger.add(sys.stderr, level="INFO")


def report(measured: Measured, samples: int, repeats: int) -> None:
    """Print the medians."""
    by_schedule: dict[str, list[Run]] = defaultdict(list)
    for run in measured.runs:
        by_schedule[run.schedule].append(run)
    wall_s = {schedule: statistics.median(run.wall_s for run in runs) for schedule, runs in by_schedule.items()}
    busy = {schedule: statistics.median(run.busy for run in runs) for schedule, runs in by_schedule.items()}
    ours = wall_s["cascade"]
    ratios = {"staged/cascade": wall_s["staged"] / ours, "cascade/bound": ours / wall_s["bound"]}
    figures: dict[str, Any] = {"samples": samples, "repeats": repeats, **ARGUMENTS, "median_s": wall_s, "busy": busy}
    figures |= {"start_s": measured.start_s, "stop_s": measured.stop_s, "ratios": ratios}
    if "fresh" in wall_s:
        with_lifecycle = ours + measured.start_s + measured.stop_s
        ratios["fresh/cascade"] = wall_s["fresh"] / ours
        ratios["fresh/(cascade + start and stop)"] = wall_s["fresh"] / with_lifecycle
        figures["fresh_answering_s"] = statistics.median(run.answering_s or 0.0 for run in by_schedule["fresh"])
    figures["runs_s"] = {schedule: [run.wall_s for run in runs] for schedule, runs in by_schedule.items()}
    print_table(
        f"{samples} samples with the lengths and exits of ChartQA, medians of {repeats} runs",
        ["Schedule", "Wall s", "Ratio to cascade", "Machine busy", "All runs, wall s"],
        [
            (
                schedule,
                f"{s:.2f}",
                f"{s / ours:.2f}",
                f"{busy[schedule]:.0%}",
                " ".join(f"{r.wall_s:.2f}" for r in by_schedule[schedule]),
            )
            for schedule, s in wall_s.items()
        ],
    )
    print(f"The persistent engines took {measured.start_s:.1f} s to start and {measured.stop_s:.1f} s to stop.")
    if "fresh" in wall_s:
        print(f"The fresh engines spent {figures['fresh_answering_s']:.1f} s answering.")
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    print_json("pipeline", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-fresh", action="store_true", help="do not measure new engines for every stage")
    arguments = parser.parse_args()
    show_progress()
    small, large = make_pair(CHECKPOINTS)
    models = {"small": str(small), "large": str(large), **ARGUMENTS}
    measured = asyncio.run(measure(models, arguments.samples, arguments.repeats, not arguments.skip_fresh))
    report(measured, arguments.samples, arguments.repeats)


if __name__ == "__main__":
    main()
