"""Gain and cost of multi-agent inference with the demo pair: six methods answer `shapes`, interleaved.

Two real vLLM engines, started once, answer the same documents with these methods:

    small S, small R   the small model alone with the Simple or the Reasoning prompt
    large S, large R   the large model alone with the same prompts
    Full RT            the small model always thinks, and the large model always answers with that thinking
    MAI                the cascade

    python benchmarks/demo.py                       # 3,000 documents, 2 repeats
    python benchmarks/demo.py --samples 200 --repeats 1

lmms-eval's own task objects build, filter and score the requests. The engines' caches are cleared before each run, so
no run profits from an earlier one. Wall seconds are medians over the repeats, and include opening the samples: for all
documents with many at the same time, and per document for the first 100 documents, one at a time. Scores are those of
the first repeat. Every second repeat has the methods in the opposite order. The last line of the output is the content
of docs/demo-pair.json, from which `make docs` makes the tables of the documentation.
Intervals are 95% intervals: Wilson's for shares, and those of paired answers for differences (tools/demo_figures.py).
Harm is the number of transferred documents whose answer is wrong although the large model's short answer was right. The
demo pair is a demonstration: no figure here is a benchmark result.
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

from common import print_json, print_table
from demo_figures import DIFFERENCES, gain, harm, wilson
from loguru import logger

from lmms_eval_mai.bench import pair as bench_pair
from lmms_eval_mai.contract import SIDES, Call, Engine, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.harness.tasks import AnswerFilter
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import EXITS, Sample, Trace
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.reports.formats import p_value
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.statistics import paired_test

METHODS: dict[str, tuple[str, str]] = {
    "small S": ("small", "shapes_s"),
    "small R": ("small", "shapes_r"),
    "large S": ("large", "shapes_s"),
    "large R": ("large", "shapes_r"),
    "Full RT": ("transfer", "shapes_s"),
    "MAI": ("cascade", "shapes_s"),
}
"""Name -> (mode, task)."""
ONE_AT_A_TIME = 100
"""Documents that are also answered one at a time."""


@dataclass(frozen=True)
class Run:
    """One run of one method."""

    traces: list[Trace]
    right: list[bool]
    """Whether each answer is right."""
    kinds: list[str]
    """The category of each question."""
    short_right: list[bool]
    """Whether each short answer of the large model is right. Empty for methods without these calls."""
    wall_s: float
    one_at_a_time_s: float = 0.0
    """Wall seconds per document, one document at a time."""

    def tokens(self, side: Side) -> int:
        """Return the output tokens of one model."""
        return sum(call.output_tokens for trace in self.traces for call in trace.calls if call.key.side == side)


def load_tasks(samples: int) -> dict[str, Any]:
    """Return lmms-eval's task objects, with the requests of the first `samples` documents."""
    from lmms_eval.tasks import TaskManager, get_task_dict

    tasks: dict[str, Any] = get_task_dict(["shapes_s", "shapes_r"], TaskManager(), task_type="chat")
    for task in tasks.values():
        task.build_all_requests(limit=samples, rank=0, world_size=1)
    return tasks


def score(task: Any, call: Call) -> bool:
    """Score one answer as lmms-eval does: with the task's filter and its metric."""
    (answer,) = AnswerFilter().apply([[call.text]], [])[0]
    return bool(task.process_results(task.test_docs()[call.key.doc_id], [answer])["exact_match"])


async def run_method(mode: str, task: Any, pair: Pair, config: Config, samples: int, open_samples: int) -> Run:
    """Run one method over the first `samples` documents, with up to `open_samples` of them at a time."""
    documents = {task.config.task: {"test": task.test_docs()}}
    traces: list[Trace | None] = [None] * samples

    def open_(number: int) -> Sample:
        return open_sample(task.instances[number], 0, documents, config)

    def done(number: int, trace: Trace) -> None:
        traces[number] = trace

    began = time.perf_counter()
    await bench_pair.run_all(len(traces), open_, lambda sample: MODES[mode](sample, pair), done, open_samples)
    wall_s = time.perf_counter() - began
    whole = [trace for trace in traces if trace is not None]
    short = [c for trace in whole for c in trace.calls if (c.key.side, c.key.stage) == ("large", "short")]
    kinds = [task.test_docs()[trace.answer.key.doc_id]["category"] for trace in whole]
    return Run(whole, [score(task, t.answer) for t in whole], kinds, [score(task, call) for call in short], wall_s)


async def clear_caches(engines: Mapping[str, Engine]) -> None:
    """Clear the caches of both engines, so that a run finds nothing of an earlier run."""
    for engine in engines.values():
        await engine.clear_caches()


async def measure(samples: int, repeats: int) -> dict[str, list[Run]]:
    """Make all runs. Returns the runs of each method."""
    config = parse({"pair": "demo"})
    tasks = load_tasks(samples)
    engines = {engine.side: build(engine, config.other(engine)) for engine in config.engines()}
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    try:
        for engine in engines.values():
            engine.validate()
            await engine.start()
        small, large = (engines[side] for side in SIDES)
        pair = Pair(small, large, config.think, config.rules, transfer_answer=config.transfer_answer)
        open_samples = bench_pair.open_samples("max", list(engines.values()))
        for mode, task in METHODS.values():
            await run_method(mode, tasks[task], pair, config, min(samples, 32), 32)  # first-time costs
        for repeat in range(repeats):
            for method, (mode, task) in list(METHODS.items())[:: -1 if repeat % 2 else 1]:
                await clear_caches(engines)
                run = await run_method(mode, tasks[task], pair, config, samples, open_samples)
                await clear_caches(engines)
                single = await run_method(mode, tasks[task], pair, config, min(samples, ONE_AT_A_TIME), 1)
                runs[method].append(replace(run, one_at_a_time_s=single.wall_s / len(single.traces)))
                logger.info(
                    f"{method}: {run.wall_s:.1f} s, {runs[method][-1].one_at_a_time_s:.3f} s a document one at a time"
                )
    finally:
        for engine in engines.values():
            await engine.close()
    return runs


def report(runs: dict[str, list[Run]], samples: int, repeats: int) -> None:
    """Print the tables and the line of JSON."""
    first = {method: one[0] for method, one in runs.items()}
    figures: dict[str, Any] = {"samples": samples, "repeats": repeats}
    figures["accuracy"] = {method: 100 * sum(run.right) / samples for method, run in first.items()}
    figures["intervals"] = {one: [100 * end for end in wilson(sum(run.right), samples)] for one, run in first.items()}
    figures["tokens"] = {method: {side: run.tokens(side) for side in SIDES} for method, run in first.items()}
    figures["wall_s"] = {method: statistics.median(run.wall_s for run in one) for method, one in runs.items()}
    figures["alone_s"] = {method: statistics.median(run.one_at_a_time_s for run in one) for method, one in runs.items()}
    print_methods(runs, figures)
    figures |= print_kinds(first)
    figures["gains"] = print_gains(first)
    figures["agreement"] = print_agreement(first["MAI"])
    exits = [trace.exit for trace in first["MAI"].traces]
    figures["exits"] = {exit: exits.count(exit) / samples for exit in EXITS["cascade"]}
    print(f"Exits of MAI: {', '.join(f'{exit} {share:.1%}' for exit, share in figures['exits'].items())}")
    figures["harm"] = {
        "MAI": print_harm("MAI", first["MAI"], first["MAI"].short_right),
        "Full RT": print_harm("Full RT", first["Full RT"], first["large S"].short_right),
    }
    figures["ratios"] = print_ratios(figures)
    print_json("demo", figures)


def print_methods(runs: dict[str, list[Run]], figures: dict[str, Any]) -> None:
    """Print accuracy, tokens and seconds of each method."""
    samples, tokens = figures["samples"], figures["tokens"]
    rows = []
    for method in runs:
        low, high = figures["intervals"][method]
        rows.append(
            (
                method,
                f"{figures['accuracy'][method]:.1f}",
                f"{low:.1f}-{high:.1f}",
                *(f"{tokens[method][side] / samples:.1f}" for side in SIDES),
                f"{figures['wall_s'][method]:.2f}",
                f"{figures['alone_s'][method]:.3f}",
                " ".join(f"{one.wall_s:.2f}" for one in runs[method]),
            )
        )
    headers = ("Method", "Accuracy %", "95% interval", "Small tokens/doc", "Large tokens/doc")
    print_table(
        f"The demo pair on {samples} documents of shapes, {figures['repeats']} interleaved runs (a demonstration)",
        [*headers, "Wall s", "s/doc, one at a time", "All runs, wall s"],
        rows,
    )


def print_kinds(first: dict[str, Run]) -> dict[str, Any]:
    """Print the right answers by kind of question. Returns the counts."""
    documents = Counter(first["MAI"].kinds)
    right = {
        method: Counter(kind for kind, right in zip(run.kinds, run.right, strict=True) if right)
        for method, run in first.items()
    }
    print_table(
        "Right answers by kind of question",
        ["Kind", "Documents", *METHODS],
        [(kind, str(number), *(str(right[method][kind]) for method in METHODS)) for kind, number in documents.items()],
    )
    return {"documents": documents, "by_kind": right}


def print_agreement(run: Run) -> dict[str, dict[str, int]]:
    """Print how often agreement is wrong, by kind of question: two models with four options may agree by chance.
    Returns the counts."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("agreed", "wrong together")}
    for trace, right, kind in zip(run.traces, run.right, run.kinds, strict=True):
        agreed = trace.exit != "transfer"
        counts["agreed"][kind] += agreed
        counts["wrong together"][kind] += agreed and not right
    print_table(
        "Agreement of the two models in MAI",
        ["Kind", *counts],
        [(kind, *(str(one[kind]) for one in counts.values())) for kind in dict.fromkeys(run.kinds)],
    )
    return {name: dict(one) for name, one in counts.items()}


def print_gains(first: dict[str, Run]) -> dict[str, list[float]]:
    """Print the differences in accuracy between methods. Returns difference, low and high of each."""
    right = {method: run.right for method, run in first.items()}
    gains = {f"{better} - {worse}": gain(right[better], right[worse]) for better, worse in DIFFERENCES}
    print_table(
        "Differences in accuracy",
        ["Methods", "Points", "95% interval", "p, exact McNemar"],
        [
            (
                name,
                f"{d:+.1f}",
                f"{low:+.1f} to {high:+.1f}",
                p_value(paired_test(*(right[one] for one in name.split(" - "))).p),
            )
            for name, (d, low, high) in gains.items()
        ],
    )
    return {name: list(values) for name, values in gains.items()}


def print_harm(method: str, run: Run, short_right: list[bool]) -> dict[str, int]:
    """Print and return the effect of the small model's thinking on transferred documents."""
    transferred = [trace.exit == "transfer" for trace in run.traces]
    found = harm(transferred, run.right, short_right)
    low, high = wilson(found.broken, found.was_right)
    print(
        f"{method}: of {found.was_right} transferred documents that large S had right, {found.broken} became wrong "
        f"({100 * low:.0f}-{100 * high:.0f}%); of {found.was_wrong} that it had wrong, {found.rescued} became right."
    )
    return asdict(found)


def print_ratios(figures: dict[str, Any]) -> dict[str, float]:
    """Print and return the ratios between methods that docs/demo-pair.md quotes."""
    tokens, wall_s, single_s = figures["tokens"], figures["wall_s"], figures["alone_s"]
    ratios = {
        "small tokens, MAI / Full RT": tokens["MAI"]["small"] / tokens["Full RT"]["small"],
        "wall, MAI / large R": wall_s["MAI"] / wall_s["large R"],
        "wall, MAI / Full RT": wall_s["MAI"] / wall_s["Full RT"],
        "wall one at a time, MAI / large R": single_s["MAI"] / single_s["large R"],
        "large tokens, Full RT / large S": tokens["Full RT"]["large"] / tokens["large S"]["large"],
    }
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    if not (1 <= arguments.samples <= 3000 and arguments.repeats >= 1):
        parser.error(
            f"--samples {arguments.samples} --repeats {arguments.repeats} is invalid: shapes has 3,000 documents, and "
            "at least one sample and one repeat are needed."
        )
    logger.remove()
    logger.add(sys.stderr, level="INFO", filter=__name__)  # lmms-eval logs every task file that it reads
    report(asyncio.run(measure(arguments.samples, arguments.repeats)), arguments.samples, arguments.repeats)


if __name__ == "__main__":
    main()
