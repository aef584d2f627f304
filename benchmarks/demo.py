"""What multi-agent inference gains and costs on the demo pair: every way of answering `shapes`, interleaved.

Two real vLLM engines, started once, answer the same documents in six ways:

    small S, small R   the small model alone with the Simple or the Reasoning prompt
    large S, large R   the large model alone
    Full RT            the small model always thinks, the large one always answers with its thinking
    MAI                the cascade

    python benchmarks/demo.py                       # 1,000 documents, 2 repeats: about 5 minutes on 2 cores
    python benchmarks/demo.py --samples 200 --repeats 1

Requests are built, filtered and scored by lmms-eval's own task objects. Engines' caches are emptied before each run,
so no way finds anything of another. Wall seconds are medians over the repeats and hold the opening of the samples: of
all documents as the cascade runs them, many at once, and a document of the first 100 one at a time, as a user waits
for it. Scores are those of the first repeat; every other repeat takes the ways in the opposite order. Intervals are at
95%, Wilson's, and for differences those of paired answers (tools/demo_figures.py). Harm: of the transferred documents
that the large model's short answer in the same run had right, how many the transfer has wrong. The demo pair is a
demonstration: nothing here is a benchmark result.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from common import print_json, print_table, walk_whole
from demo_figures import gain, harm, wilson
from loguru import logger

from lmms_eval_mai.engines.base import Call, Engine, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm.engine import VllmEngine
from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.harness.tasks import AnswerFilter
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import EXITS, Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.config import Config, parse

WAYS: dict[str, tuple[str, str]] = {
    "small S": ("small", "shapes_s"),
    "small R": ("small", "shapes_r"),
    "large S": ("large", "shapes_s"),
    "large R": ("large", "shapes_r"),
    "Full RT": ("transfer", "shapes_s"),
    "MAI": ("cascade", "shapes_s"),
}
"""Name -> (mode, task)."""
ALONE = 100
"""Documents that are also answered one at a time."""


@dataclass(frozen=True)
class Run:
    """One way, once."""

    traces: list[Trace]
    right: list[bool]
    kinds: list[str]
    """Of each document's question."""
    short_right: list[bool]
    """Of the large model's short answers, in the ways that ask for them."""
    wall_s: float
    alone_s: float = 0.0
    """Wall seconds a document, one at a time."""

    def tokens(self, side: Side) -> int:
        return sum(call.output_tokens for trace in self.traces for call in trace.calls if call.key.side == side)


def load_tasks(samples: int) -> dict[str, Any]:
    """lmms-eval's task objects, with the requests of the first `samples` documents."""
    from lmms_eval.tasks import TaskManager, get_task_dict

    tasks: dict[str, Any] = get_task_dict(["shapes_s", "shapes_r"], TaskManager(), task_type="chat")
    for task in tasks.values():
        task.build_all_requests(limit=samples, rank=0, world_size=1)
    return tasks


def score(task: Any, call: Call) -> bool:
    """What lmms-eval gives this answer: the task's filter, then its metric."""
    (answer,) = AnswerFilter().apply([[call.text]], [])[0]
    return bool(task.process_results(task.test_docs()[call.key.doc_id], [answer])["exact_match"])


async def run_way(mode: str, task: Any, pair: Pair, config: Config, samples: int, open_samples: int) -> Run:
    documents = {task.config.task: {"test": task.test_docs()}}
    traces: list[Trace | None] = [None] * samples

    def open_(number: int) -> Sample:
        return open_sample(task.instances[number], 0, documents, config.think, config.max_new_tokens)

    def done(number: int, trace: Trace) -> None:
        traces[number] = trace

    began = time.perf_counter()
    await walk_whole(len(traces), open_, lambda sample: MODES[mode](sample, pair), done, open_samples)
    wall_s = time.perf_counter() - began
    whole = [trace for trace in traces if trace is not None]
    short = [c for trace in whole for c in trace.calls if (c.key.side, c.key.stage) == ("large", "short")]
    kinds = [task.test_docs()[trace.answer.key.doc_id]["category"] for trace in whole]
    return Run(whole, [score(task, t.answer) for t in whole], kinds, [score(task, call) for call in short], wall_s)


async def forget(engines: Mapping[str, Engine]) -> None:
    for engine in engines.values():
        assert isinstance(engine, VllmEngine)
        await engine.clear_caches()


async def measure(samples: int, repeats: int) -> dict[str, list[Run]]:
    config = parse({"pair": "demo"})
    tasks = load_tasks(samples)
    engines = {side.side: build(side, config.other(side)) for side in config.engines()}
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    try:
        for engine in engines.values():
            engine.validate()
            await engine.start()
        pair = Pair(engines["small"], engines["large"], config.think, config.rules)
        for mode, task in WAYS.values():
            await run_way(mode, tasks[task], pair, config, min(samples, 32), 32)  # first-time costs
        for repeat in range(repeats):
            for way, (mode, task) in list(WAYS.items())[:: -1 if repeat % 2 else 1]:
                await forget(engines)
                run = await run_way(mode, tasks[task], pair, config, samples, config.max_open_samples)
                await forget(engines)
                alone = await run_way(mode, tasks[task], pair, config, min(samples, ALONE), 1)
                runs[way].append(replace(run, alone_s=alone.wall_s / len(alone.traces)))
                logger.info(f"{way}: {run.wall_s:.1f} s, {runs[way][-1].alone_s:.3f} s a document one at a time")
    finally:
        for engine in engines.values():
            await engine.close()
    return runs


def right_by_kind(run: Run) -> Counter[str]:
    return Counter(kind for kind, right in zip(run.kinds, run.right, strict=True) if right)


def report(runs: dict[str, list[Run]], samples: int, repeats: int) -> None:
    first = {way: one[0] for way, one in runs.items()}
    wall_s = {way: statistics.median(run.wall_s for run in one) for way, one in runs.items()}
    alone_s = {way: statistics.median(run.alone_s for run in one) for way, one in runs.items()}
    accuracy = {way: 100 * sum(run.right) / samples for way, run in first.items()}
    tokens = {way: {"small": run.tokens("small"), "large": run.tokens("large")} for way, run in first.items()}
    rows = []
    for way, run in first.items():
        low, high = wilson(sum(run.right), samples)
        rows.append(
            (
                way,
                f"{accuracy[way]:.1f}",
                f"{100 * low:.1f}-{100 * high:.1f}",
                *(f"{tokens[way][side] / samples:.1f}" for side in ("small", "large")),
                f"{wall_s[way]:.2f}",
                f"{alone_s[way]:.3f}",
                " ".join(f"{one.wall_s:.2f}" for one in runs[way]),
            )
        )
    print_table(
        f"The demo pair on {samples} documents of shapes, {repeats} interleaved runs (a demonstration)",
        ["Way", "Accuracy %", "95% interval", "Small tokens/doc", "Large tokens/doc", "Wall s", "S/doc alone", "Runs"],
        rows,
    )
    right = {way: run.right for way, run in first.items()}
    by_kind = {way: right_by_kind(run) for way, run in first.items()}
    kinds = Counter(first["MAI"].kinds)
    print_table(
        "Right, by kind of question",
        ["Kind", "Documents", *WAYS],
        [(kind, str(number), *(str(by_kind[way][kind]) for way in WAYS)) for kind, number in kinds.items()],
    )
    gains = {
        "small R - small S": gain(right["small R"], right["small S"]),
        "large S - small S": gain(right["large S"], right["small S"]),
        "Full RT - large S": gain(right["Full RT"], right["large S"]),
        "MAI - Full RT": gain(right["MAI"], right["Full RT"]),
    }
    print_table(
        "Differences, points",
        ["Claim", "Difference", "95% interval"],
        [(name, f"{d:+.1f}", f"{low:+.1f} to {high:+.1f}") for name, (d, low, high) in gains.items()],
    )
    exits = [trace.exit for trace in first["MAI"].traces]
    shares = {exit: exits.count(exit) / samples for exit in EXITS["cascade"]}
    print(f"MAI left by: {', '.join(f'{exit} {share:.1%}' for exit, share in shares.items())}")
    harms = {}
    for way, short_right in (("MAI", first["MAI"].short_right), ("Full RT", first["large S"].short_right)):
        transferred = [trace.exit == "transfer" for trace in first[way].traces]
        done = harm(transferred, right[way], short_right)
        low, high = wilson(done.spoilt, done.known)
        print(
            f"{way}: of {done.known} transferred documents that large S had right, the thinking spoilt {done.spoilt} "
            f"({100 * low:.0f}-{100 * high:.0f}%); of {done.unknown} that it had wrong, it rescued {done.rescued}."
        )
        harms[way] = asdict(done)
    ratios = {
        "small tokens, MAI / Full RT": tokens["MAI"]["small"] / tokens["Full RT"]["small"],
        "wall, MAI / large R": wall_s["MAI"] / wall_s["large R"],
        "wall one at a time, MAI / large R": alone_s["MAI"] / alone_s["large R"],
        "large tokens, Full RT / large S": tokens["Full RT"]["large"] / tokens["large S"]["large"],
    }
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    figures = {"samples": samples, "repeats": repeats, "accuracy": accuracy, "tokens": tokens, "wall_s": wall_s}
    figures |= {"alone_s": alone_s}
    figures |= {"gains": {name: list(values) for name, values in gains.items()}, "exits": shares}
    figures |= {"harm": harms, "ratios": ratios, "documents": kinds, "by_kind": by_kind}
    print_json("demo", figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    if not (1 <= arguments.samples <= 1000 and arguments.repeats >= 1):
        parser.error(
            f"shapes has 1,000 documents: --samples {arguments.samples} --repeats {arguments.repeats} cannot be."
        )
    logger.remove()
    logger.add(sys.stderr, level="INFO", filter=__name__)  # lmms-eval tells of every task file it reads
    report(asyncio.run(measure(arguments.samples, arguments.repeats)), arguments.samples, arguments.repeats)


if __name__ == "__main__":
    main()
