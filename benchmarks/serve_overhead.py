"""What a request to `lmms-eval-mai serve` costs more than the same document in an evaluation.

    python benchmarks/serve_overhead.py                 # about three minutes on 2 cores

One process has the demo pair on vLLM and a server of `lmms-eval-mai serve`. It gets the same documents of `shapes_s` in
two ways: over HTTP, as chat requests with images as data URLs, and directly, as the samples that an evaluation with
`--model mai_cascade` opens, in the same session. Rounds of both ways follow each other, every second one in the
opposite order, and the first pair is not counted. There are two tables:

* One document at a time. The wall time of a document is what its client waits for its reply, or the caller of the
  session for its trace. Each document's time is that of its fastest round, because other programs can only make it
  slower. The overhead is the median over the documents of the difference of the two times.
* Several at a time. The CPU time is that of the server's process, with all its threads, for one document. The engines'
  cores and the clients are other processes. The overhead is the median of the rounds' differences.
"""

import argparse
import asyncio
import dataclasses
import functools
import json
import multiprocessing
import statistics
import time
from typing import Any

import aiohttp
from common import print_json, print_table
from serve_clients import PATH, body_of

TASK = "shapes_s"
WAYS = ("evaluation", "server")


def host(documents: int, connection: Any) -> None:
    """Run the server, with one more route that runs documents directly. `connection`: gets the address."""
    from fastapi import Request

    from lmms_eval_mai.cli.ask import log_to_terminal
    from lmms_eval_mai.cli.document import load_task
    from lmms_eval_mai.harness.requests import open_sample
    from lmms_eval_mai.paper.sample import Sample
    from lmms_eval_mai.run.config import parse
    from lmms_eval_mai.serve.app import make_app
    from lmms_eval_mai.serve.samples import ChatSample
    from lmms_eval_mai.serve.server import Server, bind
    from lmms_eval_mai.serve.service import Service
    from lmms_eval_mai.serve.settings import Settings

    log_to_terminal()
    config = parse({"pair": "demo", "dtype": "float32", "journal": "off"})
    task = load_task(TASK, {}, None)
    task.build_all_requests(limit=documents, rank=0, world_size=1)
    data = {TASK: task.dataset}
    service = Service(config, {}, Settings("demo"))
    service.start()
    app = make_app(service)

    def opened(number: int) -> Sample:
        sample = open_sample(task.instances[number], 0, data, config)
        fields = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        return ChatSample(**fields, mode="cascade")

    @app.post("/direct")
    async def direct(request: Request) -> dict[str, Any]:
        """Run documents, some at a time, and return the seconds of each."""
        given = await request.json()
        waiting, seconds = iter(given["documents"]), {}

        async def work() -> None:
            for number in waiting:
                began = time.perf_counter()
                await asyncio.wrap_future(service._session.submit(functools.partial(opened, number)))
                seconds[number] = time.perf_counter() - began

        await asyncio.gather(*(work() for _ in range(given["parallel"])))
        return {"seconds": seconds}

    @app.get("/cpu")
    async def cpu() -> dict[str, float]:
        """Return the CPU seconds of this process."""
        return {"seconds": time.process_time()}

    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        examples = [body_of(task.dataset["test"][number]) for number in range(documents)]
        connection.send((f"http://127.0.0.1:{bound.getsockname()[1]}", examples))
        try:
            asyncio.run(Server(app, service.settings).serve(sockets=[bound]))
        finally:
            service.stop()


@dataclasses.dataclass
class Round:
    """The documents in one way."""

    seconds: list[float]
    """Wall seconds of each document."""
    cpu_s: float
    """CPU seconds of the server's process for one document."""


class Client:
    """Asks for documents in both ways."""

    def __init__(self, http: aiohttp.ClientSession, bodies: list[bytes]) -> None:
        self._http, self._bodies = http, bodies

    async def run(self, way: str, count: int, parallel: int) -> Round:
        """Ask for the first documents."""
        before = await self._cpu_s()
        seconds = await (self._over_http if way == "server" else self._directly)(count, parallel)
        return Round(seconds, (await self._cpu_s() - before) / count)

    async def _directly(self, count: int, parallel: int) -> list[float]:
        given = {"documents": list(range(count)), "parallel": parallel}
        async with self._http.post("/direct", json=given) as response:
            found = (await response.json())["seconds"]
        return [found[str(number)] for number in range(count)]

    async def _over_http(self, count: int, parallel: int) -> list[float]:
        waiting, seconds = iter(range(count)), [0.0] * count

        async def work() -> None:
            for number in waiting:
                began = time.perf_counter()
                async with self._http.post(PATH, data=self._bodies[number]) as response:
                    json.loads(await response.read())["choices"]
                seconds[number] = time.perf_counter() - began

        await asyncio.gather(*(work() for _ in range(parallel)))
        return seconds

    async def _cpu_s(self) -> float:
        async with self._http.get("/cpu") as response:
            found: float = (await response.json())["seconds"]
            return found


async def measure(url: str, bodies: list[bytes], rounds: int, alone: int, parallel: int) -> dict[str, dict[str, Any]]:
    """Return the rounds of both ways: `alone` documents one at a time, and all documents `parallel` at a time."""
    found: dict[str, dict[str, Any]] = {"alone": {way: [] for way in WAYS}, "parallel": {way: [] for way in WAYS}}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout) as http:
        client = Client(http, bodies)
        for number in range(-1, rounds):
            for load, count, at_once in (("alone", alone, 1), ("parallel", len(bodies), parallel)):
                for way in WAYS if number % 2 else reversed(WAYS):
                    one = await client.run(way, count, at_once)
                    if number >= 0:
                        found[load][way].append(one)
    return found


def figures_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the medians in milliseconds."""
    seconds = {
        way: [min(times) for times in zip(*(one.seconds for one in rounds), strict=True)]
        for way, rounds in found["alone"].items()
    }
    differences = [server - run for run, server in zip(*(seconds[way] for way in WAYS), strict=True)]
    cpu = {way: [one.cpu_s for one in rounds] for way, rounds in found["parallel"].items()}
    extra_cpu = [server - run for run, server in zip(*(cpu[way] for way in WAYS), strict=True)]
    return {
        "alone_ms": {way: 1e3 * statistics.median(seconds[way]) for way in WAYS},
        "overhead_alone_ms": 1e3 * statistics.median(differences),
        "cpu_ms": {way: 1e3 * statistics.median(cpu[way]) for way in WAYS},
        "overhead_cpu_ms": 1e3 * statistics.median(extra_cpu),
        "overhead_cpu_ms_of_rounds": [1e3 * value for value in extra_cpu],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=256)
    parser.add_argument("--alone", type=int, default=40, help="documents that are also asked one at a time")
    parser.add_argument("--parallel", type=int, default=32, help="documents at the same time")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=host, args=(given.documents, theirs))
    process.start()
    theirs.close()
    try:
        url, examples = ours.recv()
        bodies = [json.dumps(one).encode() for one in examples]
        found = asyncio.run(measure(url, bodies, given.rounds, given.alone, given.parallel))
    finally:
        process.terminate()
        process.join()
    figures = figures_of(found)
    rows = [
        [f"{given.alone} documents, one at a time: wall ms of a document", *_row(figures, "alone")],
        [f"{given.documents} documents, {given.parallel} at a time: CPU ms of a document", *_row(figures, "cpu")],
    ]
    print_table("The server and an evaluation on the same engines", ["", "Evaluation", "Server", "Overhead"], rows)
    print_json("serve_overhead", {**vars(given), **figures})


def _row(figures: dict[str, Any], name: str) -> list[str]:
    return [*(f"{figures[f'{name}_ms'][way]:.2f}" for way in WAYS), f"{figures[f'overhead_{name}_ms']:.2f}"]


if __name__ == "__main__":
    main()
