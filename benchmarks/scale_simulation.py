"""A run of up to a million samples, with simulated engines and simulated time.

The run has its scheduler, journal, meter and results, as a real one (`Session.run_samples`). Its two engines replay
answers with the output tokens of ChartQA (Table 5) and the exits of Table 10, and the time of a call depends on the
calls that run beside it. By default the times are the paper's with assumed batches (`assumed_batches.py`).

    python benchmarks/scale_simulation.py                                  # 20,000 and 100,000 samples: two minutes
    python benchmarks/scale_simulation.py --samples 1000000                # about 15 minutes, 3 GB of memory
    python benchmarks/scale_simulation.py --small profile-a.json --large profile-b.json --slots 128

Each size is run twice, in processes of their own:

* With engines that answer at once, and a journal: `Orchestration` is the CPU time of the run per call, `Memory` what
  the run added at its peak, and `Journal` the size of its file.
* With simulated engines, each on a GPU of its own, and without a journal: the simulated hours, and the hours that the
  formula of `lmms-eval-mai estimate` gives for full batches on two GPUs. The run takes longer than the formula, because
  its engines are not always full.
"""

import argparse
import asyncio
import dataclasses
import gc
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assumed_batches import BATCH_SIZE, profile
from common import GarbageClock, print_json, print_table, quiet
from forced_lengths import Lengths, sample
from loguru import logger

from lmms_eval_mai.bench.lengths import calls_until
from lmms_eval_mai.contract import SIDES, CallKey, Prompt, Side
from lmms_eval_mai.engines.scripted.virtual_time import virtual_time
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.profiles import files
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.throughput import BatchTimes, EngineSeconds, batch_sizes
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.journal.files import SampleKey
from lmms_eval_mai.run.session import Session

BENCHMARK = "chartqa"


@dataclass(frozen=True)
class Settings:
    """The settings of all runs."""

    profiles: Mapping[Side, Profile]
    slots: int
    open_samples: int


@dataclass(frozen=True)
class Run:
    """The figures of one run."""

    samples: int
    calls: int
    wall_s: float
    cpu_s: float
    gc_s: float
    memory_mb: float
    """The peak of the process's memory above that before the run."""
    journal_mb: float
    simulated_s: float
    formula_s: float
    """The seconds of the slower engine in full batches (`lmms-eval-mai estimate`)."""


def write_script(path: Path, side: Side, lengths: Lengths) -> None:
    """Write the recorded answers of one engine. A sample's repeat has the answers of its document."""
    script = lengths.script(side, "cascade")
    with path.open("w") as file:
        for doc_id, exit in enumerate(lengths.exits):
            for stage in (stage for own, stage in calls_until(exit) if own == side):
                answer = script(Prompt((), CallKey("", doc_id, 0, side, stage)))
                answer = dataclasses.replace(
                    answer, text=answer.text.replace("Thinking.", "then " * answer.output_tokens)
                )
                record = {"task": f"{BENCHMARK}_r", "doc_id": doc_id, "stage": stage, **asdict(answer)}
                file.write(json.dumps(record) + "\n")


class Clock:
    """The simulated time at which the last sample ended."""

    simulated_s = 0.0

    async def run(self, sample: Sample, pair: Pair) -> Trace:
        """Run one sample."""
        trace = await cascade(sample, pair)
        self.simulated_s = asyncio.get_running_loop().time()
        return trace


def simulate(samples: int, settings: Settings, folder: Path, instant: bool = False) -> tuple[Run, list[Trace]]:
    """Make one run in a new folder. Returns its figures and its traces. `instant`: its engines answer at once."""
    lengths = Lengths(BENCHMARK)
    arguments: dict[str, Any] = {"time_scale": 0} if instant else {"slots": settings.slots}
    for side in SIDES:
        write_script(folder / f"{side}.jsonl", side, lengths)
        arguments[side] = str(folder / f"{side}.jsonl")
        if not instant:
            arguments[f"{side}_batch_profile"] = str(files.write(settings.profiles[side], folder / side))
    # In simulated time, each fsync would wait for a single call.
    arguments |= {"journal": str(folder) if instant else "off", "max_open_samples": settings.open_samples}
    config = parse({"engine": "scripted", **arguments})
    keys: list[SampleKey] = [
        (f"{BENCHMARK}_r", number % lengths.documents, number // lengths.documents) for number in range(samples)
    ]

    def open_sample(index: int) -> Sample:
        _, doc_id, repeat = keys[index]
        return sample(BENCHMARK, doc_id, repeat)

    gc.collect()
    before_mb, clock = _peak_mb(), Clock()
    session = Session(config, run=clock.run)
    with virtual_time(), quiet(), GarbageClock() as garbage:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        traces = session.run_samples(keys, open_sample, {})
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    memory_mb = _peak_mb() - before_mb
    session.stop()
    journal_mb = sum(path.stat().st_size for path in folder.glob("*-0of1.jsonl")) / 1e6
    if wrong := sum(trace.exit != lengths.exits[key[1]] for trace, key in zip(traces, keys, strict=True)):
        raise RuntimeError(f"{wrong} exits are not as planned.")
    run = Run(
        samples=samples,
        calls=sum(len(trace.calls) for trace in traces),
        wall_s=wall_s,
        cpu_s=cpu_s,
        gc_s=garbage.seconds,
        memory_mb=memory_mb,
        journal_mb=journal_mb,
        simulated_s=clock.simulated_s,
        formula_s=max(one.total_s for one in engine_seconds(traces, settings).values()),
    )
    return run, traces


def engine_seconds(traces: list[Trace], settings: Settings) -> dict[Side, EngineSeconds]:
    """Return the time of each engine in full batches."""
    times = {side: BatchTimes(settings.profiles[side], settings.slots) for side in SIDES}
    found = {side: [0.0, 0.0] for side in SIDES}
    for trace in traces:
        for call in trace.calls:
            one = times[call.key.side].call(call.prompt_tokens, call.output_tokens, call.cached_tokens)
            found[call.key.side][0] += one.prefill_s
            found[call.key.side][1] += one.decoding_s
    return {side: EngineSeconds(*seconds) for side, seconds in found.items()}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _in_process(samples: int, settings: Settings, instant: bool) -> Run:
    """Make one run in a process of its own, because its peak of memory is that of the process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, samples, settings, instant).result()


def _run(samples: int, settings: Settings, instant: bool) -> Run:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    with tempfile.TemporaryDirectory() as folder:
        return simulate(samples, settings, Path(folder), instant)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--small", type=Path, help="profile of the small model, with batches")
    parser.add_argument("--large", type=Path, help="profile of the large model, with batches")
    parser.add_argument("--slots", type=int, default=BATCH_SIZE, help="calls that an engine runs at the same time")
    parser.add_argument("--open", type=int, default=256, help="open samples")
    given = parser.parse_args()
    if bool(given.small) != bool(given.large):
        parser.error("give both --small and --large, or none")
    small = files.read(given.small) if given.small else profile("2B")
    large = files.read(given.large) if given.large else profile("8B")
    if given.slots not in (known := batch_sizes([small, large])):
        parser.error(f"--slots {given.slots} is not a batch size of both profiles: they have {known}")
    settings = Settings({"small": small, "large": large}, given.slots, given.open)
    rows, figures = [], []
    for samples in given.samples:
        instant, run = (_in_process(samples, settings, instant) for instant in (True, False))
        per_call = [1e6 * seconds / instant.calls for seconds in (instant.cpu_s, instant.gc_s)]
        rows.append(
            [
                f"{samples:,}",
                f"{run.calls:,}",
                *(f"{us:.0f}" for us in per_call),
                f"{instant.wall_s:.1f}",
                f"{instant.memory_mb:,.0f}",
                f"{instant.journal_mb:,.0f}",
                f"{run.wall_s:.1f}",
                f"{run.simulated_s / 3600:.2f}",
                f"{run.formula_s / 3600:.2f}",
                f"{run.simulated_s / run.formula_s:.3f}",
            ]
        )
        figures.append({"instant": asdict(instant), "simulated": asdict(run)})
    print_table(
        f"{small.name} and {large.name}, {given.slots} calls at the same time, {given.open} open samples",
        [
            "Samples",
            "Calls",
            "Orchestration us/call",
            "of it GC",
            "Wall s",
            "Memory MB",
            "Journal MB",
            "Wall s of the simulation",
            "Simulated h",
            "Formula h",
            "Ratio",
        ],
        rows,
    )
    print_json("scale_simulation", {"slots": given.slots, "open": given.open, "runs": figures})


if __name__ == "__main__":
    main()
