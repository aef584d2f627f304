"""How many calls one client sustains against servers, and how throughput grows with replicas.

    python benchmarks/scale_out.py                    # about three minutes

The servers are scripted (tools/scripted_server.py), processes of their own on loopback: they cost nothing but HTTP.
Saturation: servers that answer at once, so that the client's own work is all there is, without a picture, with a small
one and with a chart of 800 x 600 pixels. EndpointPool: servers that take 0.5 s and have 32 places, 64 calls a second
each, until the client has enough. Calls are those of the `openai` engine, 512 at a time.
"""

import argparse
import asyncio
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import print_json, print_table
from PIL import Image as PilImage
from PIL import ImageDraw

from lmms_eval_mai.engines.base import CallKey, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

SERVER = Path(__file__).resolve().parents[1] / "tools" / "scripted_server.py"
PICTURES = {"no picture": None, "96 x 64": (96, 64), "800 x 600": (800, 600)}
OPEN = 512
SECONDS, PLACES = 0.5, 32


def chart(size: tuple[int, int]) -> Any:
    """Bars on white, as charts are."""
    rng = random.Random(0)
    picture = PilImage.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    width = size[0] // 12
    for bar in range(12):
        colour = rng.choice(["navy", "orange", "green", "red"])
        draw.rectangle((bar * width + 2, rng.randrange(size[1]), (bar + 1) * width - 2, size[1]), fill=colour)
    return picture


class Servers:
    """Scripted servers for as long as the block lasts."""

    def __init__(self, count: int, *arguments: str) -> None:
        self._count = count
        self._arguments = arguments
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> str:
        ports = []
        for _ in range(self._count):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                ports.append(listener.getsockname()[1])
            line = [sys.executable, str(SERVER), "--port", str(ports[-1]), *self._arguments]
            self._processes.append(subprocess.Popen(line))
        for port in ports:
            _wait(f"http://127.0.0.1:{port}/v1/models")
        return f"[{','.join(f'http://127.0.0.1:{port}/v1' for port in ports)}]"

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _wait(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer.")


def rate(urls: str, calls: int, size: tuple[int, int] | None, concurrency: int) -> tuple[float, float]:
    """(calls a second, milliseconds of this process's CPU a call). Two calls share a picture, as in a cascade."""
    config = parse({"small": urls, "mode": "small", "small_concurrency": concurrency})
    engine = build(config.small)
    pixels = None if size is None else chart(size)
    pictures = [None if pixels is None else Image(pixels, str(i)) for i in range(calls // 2)]
    waiting = iter(range(calls))

    async def worker() -> None:
        for i in waiting:
            blocks: Sequence[Any] = (pictures[i // 2], "What is it?") if pixels else ("What is it?",)
            message = Message("user", tuple(blocks))
            await engine.generate(Prompt((message,), CallKey("t", i, 0, "small", "short")), Sampling(16))
            if i % 2:
                pictures[i // 2] = None

    async def run() -> tuple[float, float]:
        await engine.start()
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(OPEN)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await engine.close()
        return calls / wall, cpu / calls * 1e3

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with Servers(1) as urls:
        rate(urls, 100, None, 256)  # imports
        for _ in range(arguments.repeats):
            for name, size in PICTURES.items():
                found.setdefault(name, []).append(rate(urls, arguments.calls, size, 256))
    first = statistics.median(calls for calls, _ in found["no picture"])
    lines, saturation = [], {}
    for name, runs in found.items():
        calls, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
        lines.append([name, f"{calls:.0f}", f"{calls / first:.2f}", f"{cpu:.2f}"])
        saturation[name] = {"calls_per_s": calls, "to_no_picture": calls / first, "client_cpu_ms": cpu}
    title = (
        f"One server that answers at once, {arguments.calls:,} calls, medians of {arguments.repeats} interleaved runs"
    )
    print_table(title, ["Picture", "Calls a second", "To no picture", "Client CPU ms a call"], lines)

    grown: dict[int, list[float]] = {}
    for _ in range(arguments.repeats):
        for replicas in (1, 2, 4, 8):
            with Servers(replicas, "--seconds", str(SECONDS)) as urls:
                calls = min(arguments.calls, 400 * replicas)
                grown.setdefault(replicas, []).append(rate(urls, calls, PICTURES["96 x 64"], PLACES)[0])
    one = statistics.median(grown[1])
    medians = {replicas: statistics.median(rates) for replicas, rates in grown.items()}
    print_table(
        f"EndpointPool that take {SECONDS} s a call, {PLACES} at a time ({PLACES / SECONDS:.0f} calls a second each)",
        ["EndpointPool", "Calls a second", "To one"],
        [[str(replicas), f"{calls:.0f}", f"{calls / one:.2f}"] for replicas, calls in medians.items()],
    )
    print_json("scale_out", {"calls": arguments.calls, "repeats": arguments.repeats, "saturation": saturation,
                             "replicas": {str(n): {"calls_per_s": calls, "to_one": calls / one}
                                          for n, calls in medians.items()}})  # fmt: skip


if __name__ == "__main__":
    main()
