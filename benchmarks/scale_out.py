"""The throughput of clients that call servers, and its growth with the number of replicas and of client processes.

    python benchmarks/scale_out.py                    # about two minutes

The servers (reply_server.py) run in one process on this machine, and cost much less than a client. The client is the
`openai` engine. 512 workers call it at the same time. Three tables:

1. One client and one server that answers at once, so only the client's own work takes time. The calls have no image, a
   small image, or a chart of 800 x 600 pixels. Two calls share an image, as in a cascade.
2. One client and replicas. A replica takes 0.5 s for a call, and the client sends it at most 32 calls at a time, which
   gives 64 calls a second per replica.
3. Several client processes and one server that answers at once, without images.
"""

import argparse
import asyncio
import multiprocessing
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import print_json, print_table
from PIL import Image as PilImage
from PIL import ImageDraw

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import parse

SERVER = Path(__file__).resolve().parent / "reply_server.py"
IMAGES = {"no image": None, "96 x 64": (96, 64), "800 x 600": (800, 600)}
WORKERS = 512
SECONDS, OPEN_PER_SERVER = 0.5, 32
REPLICAS = (1, 2, 4, 8, 16)
CLIENTS = (1, 2)


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
    """Runs servers inside a `with` block. The block gets their addresses, as the argument `small` has them."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self._count = count
        self._seconds = seconds

    def __enter__(self) -> str:
        ports = []
        for _ in range(self._count):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                ports.append(listener.getsockname()[1])
        line = [sys.executable, str(SERVER), "--seconds", str(self._seconds), "--ports", *map(str, ports)]
        self._process = subprocess.Popen(line)
        for port in ports:
            _wait(f"http://127.0.0.1:{port}/v1/models")
        return f"[{','.join(f'http://127.0.0.1:{port}/v1' for port in ports)}]"

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def _wait(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer after 20 seconds.")


def rate(
    urls: str, calls: int, size: tuple[int, int] | None, concurrency: int, ready: Callable[[], Any] = lambda: None
) -> tuple[float, float]:
    """Return calls per second, and milliseconds of this process's CPU per call. Two calls share an image. `ready` is
    called before the first call."""
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
        ready()
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        await engine.close()
        return calls / wall, cpu / calls * 1e3

    return asyncio.run(run())


def rate_of_clients(urls: str, calls: int, clients: int) -> float:
    """Return the calls per second of several client processes together. They send the first call at the same time."""
    context = multiprocessing.get_context("fork")
    start, rates = context.Barrier(clients), context.SimpleQueue()

    def client() -> None:
        rates.put(rate(urls, calls, None, 256, start.wait)[0])

    processes = [context.Process(target=client) for _ in range(clients)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(rates.get() for _ in processes)


def saturation(calls: int, repeats: int) -> dict[str, Any]:
    """Print the first table."""
    found: dict[str, list[tuple[float, float]]] = {}
    with Servers(1) as urls:
        rate(urls, 100, None, 256)  # imports
        for _ in range(repeats):
            for name, size in IMAGES.items():
                found.setdefault(name, []).append(rate(urls, calls, size, 256))
    medians = {name: [statistics.median(values) for values in zip(*runs, strict=True)] for name, runs in found.items()}
    first = medians["no image"][0]
    print_table(
        f"One server that answers at once, {calls:,} calls, medians of {repeats} interleaved runs",
        ["Image", "Calls/s", "Ratio to no image", "Client CPU ms/call"],
        [[name, f"{per_s:.0f}", f"{per_s / first:.2f}", f"{cpu:.2f}"] for name, (per_s, cpu) in medians.items()],
    )
    return {
        name: {"calls_per_s": per_s, "to_no_image": per_s / first, "client_cpu_ms": cpu}
        for name, (per_s, cpu) in medians.items()
    }


def growth(title: str, header: str, found: dict[int, list[float]]) -> dict[str, Any]:
    """Print a table of calls per second by number of replicas or clients."""
    medians = {number: statistics.median(rates) for number, rates in found.items()}
    lines = [[str(number), f"{per_s:.0f}", f"{per_s / medians[1]:.2f}"] for number, per_s in medians.items()]
    print_table(title, [header, "Calls/s", "Ratio to one"], lines)
    return {str(number): {"calls_per_s": per_s, "to_one": per_s / medians[1]} for number, per_s in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found = saturation(arguments.calls, arguments.repeats)

    replicas: dict[int, list[float]] = {}
    clients: dict[int, list[float]] = {}
    for _ in range(arguments.repeats):
        for count in REPLICAS:
            with Servers(count, SECONDS) as urls:
                calls = min(arguments.calls, 256 * count)
                replicas.setdefault(count, []).append(rate(urls, calls, IMAGES["96 x 64"], OPEN_PER_SERVER)[0])
        with Servers(1) as urls:
            for count in CLIENTS:
                clients.setdefault(count, []).append(rate_of_clients(urls, arguments.calls, count))
    title = (
        f"One client and replicas that take {SECONDS} s a call, with {OPEN_PER_SERVER} open calls each "
        f"({OPEN_PER_SERVER / SECONDS:.0f} calls/s per replica)"
    )
    by_replicas = growth(title, "Replicas", replicas)
    by_clients = growth("Client processes and one server that answers at once", "Clients", clients)
    figures = {"saturation": found, "replicas": by_replicas, "clients": by_clients}
    print_json("scale_out", {"calls": arguments.calls, "repeats": arguments.repeats, **figures})


if __name__ == "__main__":
    main()
