"""How well a profile predicts the seconds of real calls, made one at a time.

Each model is measured as by `lmms-eval-mai profile --quick`, without batches. Then the same engine answers documents of
shapes_s and shapes_r one at a time, and each call is compared with the time that the profile gives for its tokens, with
one TTFT (docs/latency.md). Each document is used once, so that no call finds its image in a cache.

    python benchmarks/profile_prediction.py --pairs demo bench-cpu --engines vllm transformers    # about 12 minutes

Models with random weights do not end their answers. With a pair that has such models, an answer to shapes_s has exactly
4 tokens, and one to shapes_r 20 to 64.
"""

import argparse
import asyncio
import dataclasses
import random
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass

from common import print_json, print_table
from loguru import logger

from lmms_eval_mai.cli.task_documents import TaskDocuments
from lmms_eval_mai.contract import SIDES, Call, Engine, Prompt, Sampling, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.wrapper import EngineWrapper
from lmms_eval_mai.latency.measure import Measurements, measure
from lmms_eval_mai.latency.plan import QUICK
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.profiles.profile import Profile
from lmms_eval_mai.profiles.times import ProfileTimes
from lmms_eval_mai.run.config import Config, parse

RANDOM_WEIGHTS = ("bench-cpu",)
SHORT_TOKENS, THINKING_TOKENS = 4, (20, 64)


class ForcedLengths(EngineWrapper):
    """An engine that ends each answer after a planned number of tokens."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        dice = random.Random(f"{prompt.key}")
        tokens = SHORT_TOKENS if prompt.key.task == "shapes_s" else dice.randint(*THINKING_TOKENS)
        return await self._engine.generate(prompt, dataclasses.replace(sampling, max_tokens=tokens, ignore_eos=True))


@dataclass(frozen=True)
class Result:
    """The calls of one model with one engine."""

    pair: str
    engine: str
    side: Side
    calls: int
    output_tokens: float
    cached_share: float
    """Cached tokens / prompt tokens."""
    measured_s: float
    """This and the next fields are medians over the calls."""
    predicted_s: float
    quotient: float
    """Predicted / measured."""
    error_percent: float
    short_error_percent: float
    """Of the calls of shapes_s."""
    thinking_error_percent: float
    """Of the calls of shapes_r."""
    quotients: tuple[float, float]
    """The first and the last tenth of predicted / measured."""


async def measure_model(side: Side, config: Config, forced: bool, number: int) -> tuple[Measurements, list[Call]]:
    """Start the engine of one model, and return its profile and its calls, half of them of each task."""
    engine = build(getattr(config, side))
    engine.validate()
    await engine.start()
    try:
        found = await measure(engine, QUICK, lambda line: None, batches=False)
        answering: Engine = ForcedLengths(engine) if forced else engine
        calls = [call async for call in _calls(answering, side, config, number)]
    finally:
        await engine.close()
    return found, calls


async def _calls(engine: Engine, side: Side, config: Config, number: int) -> AsyncIterator[Call]:
    """Yield the calls, one at a time. The two tasks alternate, and have different documents."""
    tasks = [TaskDocuments(name, number, {}, None) for name in ("shapes_s", "shapes_r")]
    for doc_id in range(number):
        sample = await asyncio.to_thread(tasks[doc_id % 2].open, doc_id, config)
        trace = await MODES[side](sample, Pair(engine, engine))
        for call in trace.calls:
            yield call


def compare(pair: str, engine: str, side: Side, found: Measurements, calls: Sequence[Call]) -> Result:
    """Compare the calls with the times of the profile."""
    times = ProfileTimes(Profile("", "", "", ttft=found.ttft, decoding=found.decoding))
    predicted = [times.call(call.prompt_tokens, call.output_tokens, call.image_tokens).corrected_s for call in calls]
    quotients = [seconds / call.total_s for seconds, call in zip(predicted, calls, strict=True)]
    tenths = statistics.quantiles(quotients, n=10)

    def error(task: str) -> float:
        of_task = (one for one, call in zip(quotients, calls, strict=True) if call.key.task.startswith(task))
        return 100 * statistics.median(abs(one - 1) for one in of_task)

    return Result(
        pair=pair,
        engine=engine,
        side=side,
        calls=len(calls),
        output_tokens=statistics.fmean(call.output_tokens for call in calls),
        cached_share=sum(call.cached_tokens for call in calls) / sum(call.prompt_tokens for call in calls),
        measured_s=statistics.median(call.total_s for call in calls),
        predicted_s=statistics.median(predicted),
        quotient=statistics.median(quotients),
        error_percent=error("shapes"),
        short_error_percent=error("shapes_s"),
        thinking_error_percent=error("shapes_r"),
        quotients=(tenths[0], tenths[-1]),
    )


def results(given: argparse.Namespace) -> Iterator[Result]:
    for pair in given.pairs:
        for kind in given.engines:
            config = parse({"pair": pair, "engine": kind})
            for side in SIDES:
                print(f"{pair}, {kind}, {side}", file=sys.stderr, flush=True)
                measured = asyncio.run(measure_model(side, config, pair in RANDOM_WEIGHTS, given.calls))
                yield compare(pair, kind, side, *measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=["demo"])
    parser.add_argument("--engines", nargs="+", choices=["vllm", "transformers"], default=["vllm", "transformers"])
    parser.add_argument("--calls", type=int, default=200, help="calls of each model with each engine")
    given = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    found = list(results(given))
    print_table(
        f"Predicted and measured time of {given.calls} calls, one at a time (medians)",
        [
            "Pair",
            "Engine",
            "Model",
            "Output tokens",
            "Cached %",
            "Measured s",
            "Predicted s",
            "Predicted / measured",
            "80% of the calls",
            "Median error %",
            "shapes_s %",
            "shapes_r %",
        ],
        [
            [
                one.pair,
                one.engine,
                one.side,
                f"{one.output_tokens:.0f}",
                f"{100 * one.cached_share:.0f}",
                f"{one.measured_s:.3f}",
                f"{one.predicted_s:.3f}",
                f"{one.quotient:.2f}",
                f"{one.quotients[0]:.2f} to {one.quotients[1]:.2f}",
                f"{one.error_percent:.1f}",
                f"{one.short_error_percent:.1f}",
                f"{one.thinking_error_percent:.1f}",
            ]
            for one in found
        ],
    )
    print_json("profile_prediction", {"results": [asdict(one) for one in found]})


if __name__ == "__main__":
    main()
