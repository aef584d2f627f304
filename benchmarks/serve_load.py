"""Many clients that ask `lmms-eval-mai serve` for some minutes. Every reply must be right.

    python benchmarks/serve_load.py                          # 256 clients for 10 minutes; 13 minutes in all
    python benchmarks/serve_load.py --clients 64 --minutes 0.5

An lmms-eval run with `--model mai_cascade` answers documents of `shapes_s` first. Then the clients ask the same
documents from a server, which is a process of its own with the same engines: the demo pair on vLLM, in fp32 so that no
rounding decides a token. Each client sends one request after the other. 1% of the requests are bad (9 kinds, from
broken JSON to a broken image) and must get their error. In 1%, the client disconnects within half a second. 1 in 10 of
the others is streamed. A reply is wrong if its text, its exit or its number of output tokens is not that of the run, or
if another reply has the same id. Every 5 s, the memory, the sockets and the open samples of the server are read.
"""

import argparse
import asyncio
import base64
import io
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
from common import print_json, print_table

from lmms_eval_mai.paper.prompts import instruction
from lmms_eval_mai.plugin import task_dir

COMMANDS = Path(sys.executable).parent
CHAT = "/v1/chat/completions"
EVERY_S = 5.0
"""Seconds between two readings of the server."""


class Document(NamedTuple):
    """A document, and its answer in the lmms-eval run."""

    body: dict[str, Any]
    """The request that asks it."""
    answer: tuple[str, str, int]
    """Text, exit and output tokens."""


def answered_documents(count: int, folder: Path) -> list[Document]:
    """Run lmms-eval on the first documents, and return them with their answers."""
    import datasets

    command = [COMMANDS / "lmms-eval", "--model", "mai_cascade", "--tasks", "shapes_s", "--limit", str(count)]
    command += ["--model_args", "pair=demo,journal=off,dtype=float32", "--log_samples", "--output_path", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.rglob("*samples_shapes_s.jsonl")
    data = datasets.load_dataset("parquet", data_files=str(task_dir() / "shapes" / "test.parquet"), split="train")
    found = []
    for line in file.read_text().splitlines():
        sample = json.loads(line)
        trace = sample["token_counts"][0]
        tokens = sum(call["output_tokens"] for call in trace["calls"])
        text = sample["filtered_resps"]  # one answer, as a text or in a list
        text = text if isinstance(text, str) else text[0]
        found.append(Document(body_of(data[sample["doc_id"]]), (text, trace["exit"], tokens)))
    return found


def body_of(doc: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a document, with the question as the task asks it."""
    file = io.BytesIO()
    doc["image"].save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    return {"model": "demo", "messages": [message(url, text)], "mai": {"benchmark": "shapes"}}


def message(url: str, text: str) -> dict[str, Any]:
    """Return a message of the user with an image."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"role": "user", "content": content}


def bad_requests(body: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return bad requests with the status that each must get."""
    wrong: list[dict[str, Any]] = [
        {"n": 2},
        {"temperature": "hot"},
        {"tools": [{}]},
        {"messages": []},
        {"messages": [message("data:image/png;base64,AAAA", "Hm?")]},
        {"messages": [message("http://127.0.0.1/image.png", "Hm?")]},
    ]
    text = json.dumps(body)
    bodies = [(json.dumps(body | fields).encode(), 400) for fields in wrong]
    bodies += [(json.dumps(body | {"model": "gpt"}).encode(), 404)]
    return [*bodies, (text[: len(text) // 2].encode(), 400), (b"[" * 100_000, 400)]


class Clients:
    """Clients that ask documents one after the other, and what they found."""

    def __init__(self, http: aiohttp.ClientSession, documents: list[Document], given: argparse.Namespace) -> None:
        self.seconds: dict[str, list[float]] = {}
        """Exit -> seconds of its answers."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._http, self._documents, self._given = http, documents, given
        self._chance = random.Random(given.seed)
        self._bad = bad_requests(documents[0].body)
        self._ids: set[str] = set()

    async def ask_until(self, end: float) -> None:
        """Let all clients ask until a time of `time.monotonic`, and wait for their last replies."""

        async def client() -> None:
            while time.monotonic() < end:
                try:
                    await self._ask_once()
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, AssertionError) as error:
                    self.problems.append(f"{type(error).__name__}: {error}")

        await asyncio.gather(*(client() for _ in range(self._given.clients)))

    async def _ask_once(self) -> None:
        drawn, document = self._chance.random(), self._chance.choice(self._documents)
        if drawn < self._given.bad:
            body, expected = self._chance.choice(self._bad)
            status, reply = await self._post(body)
            self.counts["bad requests"] += 1
            assert status == expected and json.loads(reply)["error"]["message"], f"{status}, not {expected}: {reply!r}"
        elif drawn < self._given.bad + self._given.disconnects:
            self.counts["disconnects"] += 1
            try:
                async with asyncio.timeout(self._chance.random() / 2):
                    await self._post(json.dumps(document.body).encode())
            except TimeoutError:
                pass  # aiohttp closes the connection of a request that is cancelled
        else:
            await self._ask(document, streamed=self._chance.random() < 0.1)

    async def _ask(self, document: Document, streamed: bool) -> None:
        began = time.monotonic()
        status, reply = await self._post(json.dumps(document.body | {"stream": streamed}).encode())
        seconds = time.monotonic() - began
        assert status == 200, f"The status is {status}: {reply[:300]!r}"
        reply_id, text, mai = (parts_of_stream if streamed else parts_of_reply)(reply)
        answer = text, mai["exit"], sum(call["output_tokens"] for call in mai["calls"])
        assert answer == document.answer, f"The answer is {answer}, not {document.answer}."
        assert reply_id not in self._ids, f"The id {reply_id} came twice."
        self._ids.add(reply_id)
        self.counts["streamed"] += streamed
        self.seconds.setdefault(mai["exit"], []).append(seconds)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        async with self._http.post(CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
            return response.status, await response.read()


def parts_of_reply(body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Return the id, the answer and the field `mai` of a reply."""
    reply = json.loads(body)
    return reply["id"], reply["choices"][0]["message"]["content"], reply["mai"]


def parts_of_stream(body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Return the same of a streamed reply."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", f"The stream ends with {lines[-1][:300]}"
    chunks = [json.loads(line) for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return chunks[0]["id"], text, next(chunk["mai"] for chunk in chunks if "exit" in chunk.get("mai", {}))


@contextmanager
def server(folder: Path) -> Iterator[tuple[psutil.Popen, str]]:
    """Run `lmms-eval-mai serve` in a process of its own, and give its address."""
    log = folder / "serve.log"
    command = [COMMANDS / "lmms-eval-mai", "serve", "--pair", "demo", "--port", "0", "--model_args", "dtype=float32"]
    with log.open("w") as file:
        process = psutil.Popen([*map(str, command)], stdout=file, stderr=file)
    try:
        while (found := re.search(r"on (http://\S+)/v1", log.read_text())) is None:
            if process.poll() is not None:
                raise SystemExit(f"The server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield process, found.group(1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


async def reading(process: psutil.Popen, http: aiohttp.ClientSession) -> dict[str, float]:
    """Return the memory (MiB), sockets, threads and samples of the server now."""
    async with http.get("/metrics") as response:
        open_samples = re.search(r'^mai_requests\{state="open"\} (\S+)', await response.text(), re.MULTILINE)
    return {
        "server MiB": process.memory_info().rss / 2**20,
        "engines MiB": sum(child.memory_info().rss for child in process.children(recursive=True)) / 2**20,
        "sockets": len(process.net_connections("tcp")),
        "threads": process.num_threads(),
        "open samples": float(open_samples.group(1)) if open_samples else 0.0,
    }


async def measure(
    process: psutil.Popen, url: str, documents: list[Document], given: argparse.Namespace
) -> tuple[Clients, list[dict[str, float]]]:
    """Let all clients ask. Returns them, and the readings of the server: while they ask, and the last one after it."""
    readings = []
    # uvicorn closes a connection that nobody used for 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as http:
        clients, began = Clients(http, documents, given), time.monotonic()
        asking = asyncio.ensure_future(clients.ask_until(began + 60 * given.minutes))
        while not asking.done():
            await asyncio.wait({asking}, timeout=EVERY_S)
            readings.append({"s": time.monotonic() - began, **await reading(process, http)})
        await asking
    await asyncio.sleep(3)
    async with aiohttp.ClientSession(url) as http:
        readings.append({"s": time.monotonic() - began, **await reading(process, http)})
    return clients, readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad requests")
    parser.add_argument("--disconnects", type=float, default=0.01, help="share of requests whose client disconnects")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        documents = answered_documents(given.documents, Path(name))
        with server(Path(name)) as (process, url):
            clients, readings = asyncio.run(measure(process, url, documents, given))
        exit_code = process.returncode
    exits = dict(sorted(clients.seconds.items())) | {"all": [s for found in clients.seconds.values() for s in found]}
    percentiles = {exit: statistics.quantiles(seconds, n=100) for exit, seconds in exits.items() if len(seconds) > 1}
    per_s = len(exits["all"]) / readings[-2]["s"]
    print_table(
        f"{given.clients} clients: {per_s:.0f} answers a second",
        ["exit", "answers", "p50 s", "p95 s", "p99 s"],
        [
            [exit, f"{len(exits[exit]):,}", *(f"{at[p - 1]:.2f}" for p in (50, 95, 99))]
            for exit, at in percentiles.items()
        ],
    )
    shown = [*readings[: -1 : max(1, len(readings) // 10)], readings[-1]]
    print_table(
        "The server over time; last row: after all clients",
        list(shown[0]),
        [[f"{value:,.0f}" for value in row.values()] for row in shown],
    )
    print(f"Requests: {dict(clients.counts)}. Wrong or missing replies: {len(clients.problems)}.")
    print(*clients.problems[:20], sep="\n")
    figures = {"answers_per_s": per_s, "requests": dict(clients.counts), "problems": len(clients.problems)}
    print_json("serve_load", {**vars(given), **figures, "readings": shown, "exit_code": exit_code})
    if clients.problems or exit_code:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
