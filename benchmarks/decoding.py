"""CPU time of this process per output token: answers decoded once, and by vLLM token by token.

One real vLLM engine with the small model of the demo pair answers the same prompts in both ways. Every second repeat
has the opposite order. The time includes everything that the process does for a call: preparing the prompt, reading the
engine's messages, metrics, decoding. The engine itself is another process, and its time is not included.

    python benchmarks/decoding.py                 # about two minutes on 2 cores
    python benchmarks/decoding.py --repeats 20
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

from common import print_json, print_table
from PIL import Image as PilImage

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

LOADS = {"32 long answers": (32, 600), "128 short answers": (128, 2)}
"""Name -> (calls at the same time, output tokens of each)."""
WAYS = {"token by token": False, "once": True}
"""Name -> `Detokenizer.decodes_at_once`."""


def question(number: int) -> Prompt:
    image = Image(PilImage.new("RGB", (96 + 8 * (number % 8), 64), "red"), f"image-{number % 8}")
    return Prompt((Message("user", (image, "What is it?\n")),), CallKey("decoding", number, 0, "small", "short"))


async def cpu_s(engine: Any, calls: int, tokens: int) -> float:
    """Return the CPU time of this process for so many calls."""
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    started_at = time.process_time()
    await asyncio.gather(*(engine.generate(question(number), sampling) for number in range(calls)))
    return time.process_time() - started_at


async def measure(repeats: int) -> dict[tuple[str, str], list[float]]:
    """Return (load, way) -> CPU seconds of each repeat."""
    engine: Any = build(parse({"mode": "small", "pair": "demo"}).small)
    engine.validate()
    await engine.start()
    found: dict[tuple[str, str], list[float]] = {}
    try:
        for repeat in range(-1, repeats):  # the first round fills the caches
            for load, (calls, tokens) in LOADS.items():
                for way, at_once in sorted(WAYS.items(), reverse=repeat % 2 == 0):
                    engine._detokenizer.decodes_at_once = at_once
                    seconds = await cpu_s(engine, calls, tokens)
                    if repeat >= 0:
                        found.setdefault((load, way), []).append(seconds)
    finally:
        await engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.repeats))
    lines, figures = [], {}
    for (load, way), seconds in found.items():
        calls, tokens = LOADS[load]
        per_token, per_call = (
            statistics.median(seconds) * 1e6 / calls / tokens,
            statistics.median(seconds) * 1e3 / calls,
        )
        lines.append([load, way, f"{per_token:.1f}", f"{per_call:.2f}"])
        figures[f"{load}, {way}"] = {"us_per_token": per_token, "ms_per_call": per_call}
    print_table(
        f"CPU time of this process, medians of {arguments.repeats} interleaved repeats",
        ["Answers", "Decoded", "us per token", "ms per call"],
        lines,
    )
    print_json("decoding", {"repeats": arguments.repeats, **figures})


if __name__ == "__main__":
    main()
