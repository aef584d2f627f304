"""Tokens per second of vLLM with and without log-probabilities, on the small model of the demo pair.

    python benchmarks/logprobs.py                 # 6 rounds of 64 answers of 128 tokens each way: about three minutes

The rounds are interleaved. Each answer has exactly the same number of tokens, and 32 of them are decoded at a time. The
last line is one line of JSON.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from common import print_json, print_table

from lmms_eval_mai.contract import CallKey, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import engine as vllm_engine
from lmms_eval_mai.engines.vllm.outputs import sampling_params
from lmms_eval_mai.run.config import parse


def without_logprobs(sampling: Sampling) -> Any:
    found = sampling_params(sampling)
    found.logprobs = None
    return found


async def tokens_per_second(engine: Any, answers: int, tokens: int, at_once: int) -> float:
    slots = asyncio.Semaphore(at_once)

    async def ask(number: int) -> int:
        prompt = Prompt((Message("user", (f"Count from {number}.",)),), CallKey("count", number, 0, "small", "task"))
        async with slots:
            call = await engine.generate(prompt, Sampling(max_tokens=tokens, ignore_eos=True))
        return int(call.output_tokens)

    began = time.perf_counter()
    made = sum(await asyncio.gather(*map(ask, range(answers))))
    return made / (time.perf_counter() - began)


async def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    engine = build(parse({"pair": "demo", "mode": "small", "journal": "off"}).small)
    await engine.start()
    found: dict[str, list[float]] = {"with": [], "without": []}
    try:
        for number in range(arguments.rounds + 1):
            for name, make in (("with", sampling_params), ("without", without_logprobs)):
                vllm_engine.sampling_params = make  # type: ignore[attr-defined]
                speed = await tokens_per_second(engine, arguments.answers, arguments.tokens, 32)
                if number:  # the first round warms up
                    found[name].append(speed)
    finally:
        await engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments))
    pairs = [a / b for a, b in zip(found["with"], found["without"], strict=True)]
    rows = [[name, *(f"{fn(speeds):,.0f}" for fn in (statistics.median, min, max))] for name, speeds in found.items()]
    title = f"with / without, median of {len(pairs)} interleaved rounds: {statistics.median(pairs):.3f}"
    print_table(title, ["log-probabilities", "tokens/s, median", "min", "max"], rows)
    print_json("logprobs", {"ratio": statistics.median(pairs), "ratios": pairs, **found})


if __name__ == "__main__":
    main()
