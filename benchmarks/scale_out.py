"""The throughput of one client that calls servers, and its growth with the number of replicas.

    python benchmarks/scale_out.py                    # about three minutes

The servers are scripted (tools/scripted_server.py) and run in separate processes on this machine, so they cost nothing
but HTTP. The first table is about saturation: the server answers at once, so only the client's own work takes time. It
has calls without an image, with a small image, and with a chart of 800 x 600 pixels. The second table is about
replicas: each server takes 0.5 s for a call, and the client sends at most 32 requests to each server at a time, which
gives 64 calls a second per server. The client is the `openai` engine. 512 workers call it at the same time.
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
IMAGES = {"no image": None, "96 x 64": (96, 64), "800 x 600": (800, 600)}
WORKERS = 512
SECONDS, OPEN_PER_SERVER = 0.5, 32


def chart(size: tuple[int, int]) -> Any:
    """Draw a bar chart on white."""
    rng = random.Random(0)
    image = PilImage.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    width = size[0] // 12
    for bar in range(12):
        colour = rng.choice(["navy", "orange", "green", "red"])
        draw.rectangle((bar * width + 2, rng.randrange(size[1]), (bar + 1) * width - 2, size[1]), fill=colour)
    return image


class Servers:
    """Runs scripted servers inside a `with` block. The block gets their addresses, as the argument `small` has them."""

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
    raise SystemExit(f"{url} does not answer after 20 seconds.")


def rate(urls: str, calls: int, size: tuple[int, int] | None, concurrency: int) -> tuple[float, float]:
    """Return calls per second, and milliseconds of this process's CPU per call. Two calls share an image."""
    config = parse({"small": urls, "mode": "small", "small_concurrency": concurrency})
    engine = build(config.small)
    pixels = None if size is None else chart(size)
    images = [None if pixels is None else Image(pixels, str(i)) for i in range(calls // 2)]
    waiting = iter(range(calls))

    async def worker() -> None:
        for i in waiting:
            blocks: Sequence[Any] = (images[i // 2], "What is it?") if pixels else ("What is it?",)
            message = Message("user", tuple(blocks))
            await engine.generate(Prompt((message,), CallKey("t", i, 0, "small", "short")), Sampling(16))
            if i % 2:
                images[i // 2] = None

    async def run() -> tuple[float, float]:
        await engine.start()
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(WORKERS)))
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
            for name, size in IMAGES.items():
                found.setdefault(name, []).append(rate(urls, arguments.calls, size, 256))
    first = statistics.median(calls for calls, _ in found["no image"])
    lines, saturation = [], {}
    for name, runs in found.items():
        calls, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
        lines.append([name, f"{calls:.0f}", f"{calls / first:.2f}", f"{cpu:.2f}"])
        saturation[name] = {"calls_per_s": calls, "to_no_image": calls / first, "client_cpu_ms": cpu}
    title = (
        f"One server that answers at once, {arguments.calls:,} calls, medians of {arguments.repeats} interleaved runs"
    )
    print_table(title, ["Image", "Calls/s", "Ratio to no image", "Client CPU ms/call"], lines)

    grown: dict[int, list[float]] = {}
    for _ in range(arguments.repeats):
        for replicas in (1, 2, 4, 8):
            with Servers(replicas, "--seconds", str(SECONDS)) as urls:
                calls = min(arguments.calls, 400 * replicas)
                grown.setdefault(replicas, []).append(rate(urls, calls, IMAGES["96 x 64"], OPEN_PER_SERVER)[0])
    one = statistics.median(grown[1])
    medians = {replicas: statistics.median(rates) for replicas, rates in grown.items()}
    print_table(
        f"Servers that take {SECONDS} s a call, with {OPEN_PER_SERVER} open requests each "
        f"({OPEN_PER_SERVER / SECONDS:.0f} calls/s per server)",
        ["Servers", "Calls/s", "Ratio to one server"],
        [[str(replicas), f"{calls:.0f}", f"{calls / one:.2f}"] for replicas, calls in medians.items()],
    )
    print_json("scale_out", {"calls": arguments.calls, "repeats": arguments.repeats, "saturation": saturation,
                             "replicas": {str(n): {"calls_per_s": calls, "to_one": calls / one}
                                          for n, calls in medians.items()}})  # fmt: skip


if __name__ == "__main__":
    main()
