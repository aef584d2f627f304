"""Many clients that ask `lmms-eval-mai serve` for some minutes, with bad requests and clients that disconnect.

    python benchmarks/serve_load.py                          # 256 clients for 10 minutes; 13 minutes in all
    python benchmarks/serve_load.py --clients 64 --minutes 0.5

An lmms-eval run with `--model mai_cascade` answers documents of `shapes_s` first. Then the clients ask the same
documents from a server, which is a process of its own with the same engines: the demo pair on vLLM, in fp32 so that no
rounding decides a token. Each client sends one request after the other. 1% of the requests are bad (9 kinds, from
broken JSON to a broken image). In 1%, the client disconnects within half a second. 1 in 10 of the others is streamed.

An answer is wrong if its text, its exit or its number of output tokens is not that of the run. A reply that has the id
of another reply is a duplicate. The numbers of replies that the server counts must be those that the clients got. Every
5 s, the memory, the sockets and the open samples of the server are read.
"""

import argparse
import asyncio
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from common import print_json, print_table
from serve_clients import Clients, Document, documents_of, metric

COMMANDS = Path(sys.executable).parent
MODEL_ARGS = "dtype=float32"
TASK = "shapes_s"
NAMES = ("answers", "p50_s", "p95_s", "p99_s")
EVERY_S = 5.0
"""Seconds between two readings of the server."""


def expected_documents(count: int, folder: Path) -> list[Document]:
    """Run lmms-eval on the first documents, and return them with their answers."""
    line = [COMMANDS / "lmms-eval", "--model", "mai_cascade", "--model_args", f"pair=demo,journal=off,{MODEL_ARGS}"]
    line += ["--tasks", TASK, "--limit", str(count), "--log_samples", "--output_path", folder]
    log = folder / "run.log"
    with log.open("w") as file:
        subprocess.run([*map(str, line)], check=False, stdout=file, stderr=file)
    files = list(folder.rglob(f"*samples_{TASK}.jsonl"))
    if not files:
        raise SystemExit(f"The lmms-eval run failed:\n{log.read_text()[-3000:]}")
    return documents_of(files[0])


class Server:
    """`lmms-eval-mai serve` in a process of its own, inside a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "serve.log"

    def __enter__(self) -> "Server":
        line = [COMMANDS / "lmms-eval-mai", "serve", "--pair", "demo", "--port", "0", "--model_args", MODEL_ARGS]
        with self.log.open("w") as file:
            self.process = psutil.Popen([*map(str, line)], stdout=file, stderr=file)
        while (found := re.search(r"on (http://\S+)/v1", self.log.read_text())) is None:
            if self.process.poll() is not None:
                raise SystemExit(f"The server did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)
        self.url = found.group(1)
        return self

    def reading(self, metrics: str) -> dict[str, float]:
        """Return the memory (MiB), sockets, threads and samples of the server now."""
        engines = sum(child.memory_info().rss for child in self.process.children(recursive=True))
        return {
            "server_mib": self.process.memory_info().rss / 2**20,
            "engines_mib": engines / 2**20,
            "sockets": len(self.process.net_connections("tcp")),
            "threads": self.process.num_threads(),
            "open": metric(metrics, "mai_requests", state="open"),
            "queued": metric(metrics, "mai_requests", state="queued"),
        }

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.exit_code = self.process.wait(120)


async def load(server: Server, clients: Clients, minutes: float) -> list[dict[str, float]]:
    """Let all clients ask for so many minutes. Returns the readings of the server: while they ask, and after them."""
    readings, began = [], time.monotonic()
    async with clients:
        asking = asyncio.ensure_future(clients.ask_until(began + 60 * minutes))
        while not asking.done():
            await asyncio.wait({asking}, timeout=EVERY_S)
            reading = server.reading(await clients.metrics())
            readings.append({"s": time.monotonic() - began, "answers": len(clients.answered), **reading})
        await asking
    await asyncio.sleep(1)
    async with clients:  # on a new connection
        metrics = await clients.metrics()
    clients.check_replies(metrics)
    readings.append({"s": time.monotonic() - began, "answers": len(clients.answered), **server.reading(metrics)})
    return readings


def quantiles(seconds: list[float]) -> list[float]:
    """Return p50, p95 and p99."""
    found = statistics.quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 99
    return [found[49], found[94], found[98]]


def report(clients: Clients, readings: list[dict[str, float]], exit_code: int) -> dict[str, Any]:
    """Print the tables. Returns the figures."""
    latencies: dict[str, list[float]] = {}
    for answer in clients.answered:
        latencies.setdefault(answer.exit, []).append(answer.seconds)
    latencies = {**dict(sorted(latencies.items())), "all": [answer.seconds for answer in clients.answered]}
    by_exit = {exit: (len(seconds), *quantiles(seconds)) for exit, seconds in latencies.items()}
    *during, after = readings
    seconds = during[-1]["s"]
    rows = [[exit, f"{count:,}", *(f"{value:.2f}" for value in values)] for exit, (count, *values) in by_exit.items()]
    title = f"{clients.count} clients for {seconds:.0f} s: {len(clients.answered) / seconds:.0f} answers a second"
    print_table(title, ["Exit", "Answers", "p50 s", "p95 s", "p99 s"], rows)
    counts = clients.counts()
    print_table("All requests", ["Requests", "Number"], [[name, f"{count:,}"] for name, count in counts.items()])
    # The first reading is at the start; then about ten in equal distances, and the one after the end.
    shown = [*during[: -1 : max(1, len(during) // 10)], during[-1], after]
    names = ["s", "answers", "server_mib", "engines_mib", "sockets", "threads", "open", "queued"]
    headers = ["s", "Answers", "Server MiB", "Engines MiB", "Sockets", "Threads", "Open", "Queued"]
    print_table("The server over time; last row: after all clients", headers,
                [[f"{row[name]:,.0f}" for name in names] for row in shown])  # fmt: skip
    return {
        "clients": clients.count,
        "seconds": seconds,
        "answers_per_s": len(clients.answered) / seconds,
        "exits": {exit: dict(zip(NAMES, row, strict=True)) for exit, row in by_exit.items()},
        "requests": counts,
        "readings": shown,
        "exit_code": exit_code,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad requests")
    parser.add_argument("--disconnects", type=float, default=0.01, help="share of requests whose client disconnects")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        documents = expected_documents(given.documents, Path(folder))
        with Server(Path(folder)) as server:
            clients = Clients(server.url, documents, given.clients, given.bad, given.disconnects, given.seed)
            readings = asyncio.run(load(server, clients, given.minutes))
    figures = report(clients, readings, server.exit_code)
    for problem in clients.problems[:20]:
        print(problem)
    print_json("serve_load", {**figures, "seed": given.seed})
    if clients.problems or server.exit_code:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
