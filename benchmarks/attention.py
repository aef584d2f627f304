"""Memory and time of a scoring call of sparse transfer (Eq. 12), by the length of the thinking.

A Qwen3-VL with random weights reads prompts of 2,048 and 8,192 tokens: without attention weights (one prefill and one
token), and as a scoring call in its middle layer. The transformers engine stops after this layer; vLLM runs all layers.
A process of its own measures each line of the table. Memory is how far the calls raised the peak: resident memory
of the processes that run the model, or the GPU's memory.

    python benchmarks/attention.py                        # about five minutes on 2 cores
    python benchmarks/attention.py --engines transformers --tokens 2048 4096 8192
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from common import print_json, print_table
from make_tiny_pair import make_checkpoint

from lmms_eval_mai.contract import AttentionRequest, Call, CallKey, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

LAYERS = 4
LAYER = 2
"""The scored layer."""
WAYS = ("prefill", "scoring")
ONE_TOKEN = Sampling(max_tokens=1)
MIB = 1 << 20


def prompts(tokens: int, way: str) -> Iterator[Prompt]:
    """Yield prompts of about so many tokens. Each begins differently, so that no prefix cache has it."""
    thinking = "dog " * (tokens - 60)
    attention = AttentionRequest((LAYER,), thinking) if way == "scoring" else None
    for number in itertools.count(tokens):
        question = f"Question {number}: is there a dog in the image? According to previous thinking: "
        message = Message("user", (question, thinking, "\n Answer the question."))
        yield Prompt((message,), CallKey("attention", number, 0, "large", "score"), attention)


class Watched:
    """Peak memory and CPU time of the processes that run the model."""

    def __init__(self, engine: str) -> None:
        own = psutil.Process()
        self._processes = [own] if engine == "transformers" else own.children(recursive=True)

    def reset(self) -> None:
        """Set the peaks to the present memory."""
        import torch

        for process in self._processes:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._before = self._bytes("VmRSS")

    def peak_mib(self) -> float:
        """Return how far the peak is above the memory at the reset. On a GPU, only transformers' memory is known."""
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated() / MIB
        return (self._bytes("VmHWM") - self._before) / MIB

    def cpu_s(self) -> float:
        """Return the CPU time so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    def _bytes(self, name: str) -> int:
        status = [Path(f"/proc/{process.pid}/status").read_text() for process in self._processes]
        lines = [line for text in status for line in text.splitlines() if line.startswith(name + ":")]
        return sum(int(line.split()[1]) * 1024 for line in lines)


async def measure(engine_kind: str, path: str, tokens: int, way: str, repeats: int) -> dict[str, float]:
    """Return the figures of one kind of call of one engine, in this process."""
    arguments = {"mode": "small", "small": path, "engine": engine_kind, "dtype": "float32", "max_model_len": 9216}
    engine: Any = build(replace(parse(arguments).small, attention=True))
    engine.validate()
    await engine.start()
    watched = Watched(engine_kind)
    seconds, cpu = [], []
    try:
        await engine.generate(next(prompts(128, way)), ONE_TOKEN)  # so that all code is loaded
        watched.reset()
        for prompt in itertools.islice(prompts(tokens, way), repeats):
            started_at, cpu_before = time.perf_counter(), watched.cpu_s()
            call: Call = await engine.generate(prompt, ONE_TOKEN)
            seconds.append(time.perf_counter() - started_at)
            cpu.append(watched.cpu_s() - cpu_before)
        peak = watched.peak_mib()
    finally:
        await engine.close()
    return {
        "prompt_tokens": call.prompt_tokens,
        "seconds": min(seconds),
        "cpu_seconds": min(cpu),
        "peak_mib": peak,
    }


def measure_in_process(engine: str, path: Path, tokens: int, way: str, repeats: int) -> dict[str, float]:
    """Return the figures of one kind of call of one engine, measured in a process of its own: memory that earlier calls
    have freed would hide what a call needs."""
    command = [sys.executable, __file__, "--engines", engine, "--tokens", str(tokens), "--repeats", str(repeats)]
    command += ["--way", way, "--checkpoint", str(path)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["transformers", "vllm"], choices=["transformers", "vllm"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[2048, 8192])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", help=argparse.SUPPRESS)  # set in the process of one measurement
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.checkpoint:
        one = measure(given.engines[0], given.checkpoint, given.tokens[0], given.way, given.repeats)
        print(json.dumps(asyncio.run(one)))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        make_checkpoint(path, hidden=768, layers=LAYERS, seed=3, intermediate=3072, context=9216)
        for engine, tokens, way in itertools.product(given.engines, given.tokens, WAYS):
            numbers = measure_in_process(engine, path, tokens, way, given.repeats)
            figures[f"{engine}, {way}, {tokens} tokens"] = numbers
    rows = []
    for name, n in figures.items():
        shown = [f"{n['prompt_tokens']:,}", f"{n['seconds']:.2f}", f"{n['cpu_seconds']:.2f}", f"{n['peak_mib']:.0f}"]
        rows.append([*name.split(", ")[:2], *shown])
    print_table(
        f"One call, layer {LAYER} of {LAYERS}: the fastest of {given.repeats} calls, and the highest memory",
        ["Engine", "Call", "Prompt tokens", "Seconds", "CPU seconds", "Peak MiB above the model"],
        rows,
    )
    print_json("attention", {"repeats": given.repeats, "layers": LAYERS, "layer": LAYER, **figures})


if __name__ == "__main__":
    main()
