"""Many clients that ask `lmms-eval-mai serve` for some minutes. Every reply must be right.

    python benchmarks/serve_load.py                          # 256 clients for 10 minutes; 13 minutes in all
    python benchmarks/serve_load.py --clients 64 --minutes 0.5

An lmms-eval run with `--model mai_cascade` answers documents of `shapes_s` first. Then the clients ask the same
documents from a server, which is a process of its own with the same engines: the demo pair on vLLM, in fp32 so that no
rounding decides a token. Some requests are bad or hostile and must get their error, some clients disconnect within half
a second, and 1 in 10 of the others is streamed. A reply is wrong if its text, its exit or its number of output tokens
is not that of the run, or if another reply has the same id. At the end, the server gets SIGTERM under load, and a
second server SIGKILL.

Commit ecbb125, clients and server on the same 2 cores of an AMD EPYC: 256 clients for 10 minutes, 1% bad requests, 1%
disconnects, 135 answers a second. Latencies (p50 and p99): `agree_short` 1.45 and 2.25 s, `agree_think` 2.67 and 4.34
s, `transfer` 3.80 and 5.78 s. None of 81,376 answers differed. Memory: 921 MiB after a minute, 927 at the end.
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
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
from common import print_json

from lmms_eval_mai.method.prompts import instruction
from lmms_eval_mai.plugin import task_dir

COMMANDS = Path(sys.executable).parent
EVERY_S = 5.0
"""Seconds between two readings of the server."""


class Document(NamedTuple):
    """A document, and its answer in the lmms-eval run."""

    body: dict[str, Any]
    answer: tuple[str, str, int]
    """Text, exit and output tokens."""


def answered_documents(count: int, folder: Path) -> list[Document]:
    """Run lmms-eval on the first documents, and return them with their answers."""
    import datasets

    command = [str(COMMANDS / "lmms-eval"), "--model", "mai_cascade", "--tasks", "shapes_s", "--limit", str(count)]
    command += ["--model_args", "pair=demo,store=off,dtype=float32", "--log_samples"]
    command += ["--output_path", str(folder)]
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
    """Return bad and hostile requests with the status that each must get."""
    wrong: list[tuple[dict[str, Any], int]] = [
        ({"n": 2}, 400),
        ({"temperature": "hot"}, 400),
        ({"messages": []}, 400),
        ({"messages": [message("data:image/png;base64,AAAA", "Hm?")]}, 400),
        ({"messages": [message("http://127.0.0.1/image.png", "Hm?")]}, 400),
        ({"messages": [message("data:image/png;base64," + "A" * 10_000_000, "Hm?")]}, 400),
        ({"messages": [{"role": "user", "content": "a <|im_end|> b" * 50_000}], "max_tokens": 5}, 400),
        ({"tools": [{}] * 250_000}, 400),
        ({"metadata": {"a": [[]] * 1_000_000}}, 413),
        ({"model": "gpt"}, 404),
    ]
    bodies = [(json.dumps(body | fields).encode(), status) for fields, status in wrong]
    return [*bodies, (json.dumps(body)[:500].encode(), 400), (b"[" * 100_000, 400)]


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
            self.counts["bad requests"] += 1
            body, expected = self._chance.choice(self._bad)
            status, reply = await self._post(body)
            assert status == expected and json.loads(reply)["error"]["message"], f"{status}, not {expected}: {reply!r}"
        elif drawn < self._given.bad + self._given.disconnects:
            self.counts["disconnects"] += 1
            asking = asyncio.ensure_future(self._post(json.dumps(document.body).encode()))
            await asyncio.wait([asking], timeout=self._chance.random() / 2)
            asking.cancel()  # aiohttp closes its connection then
        else:
            await self._ask(document, streamed=self._chance.random() < 0.1)

    async def _ask(self, document: Document, streamed: bool) -> None:
        began = time.monotonic()
        status, reply = await self._post(json.dumps(document.body | {"stream": streamed}).encode())
        assert status == 200, f"The status is {status}: {reply[:300]!r}"
        reply_id, text, mai = (parts_of_stream if streamed else parts_of_reply)(reply)
        answer = text, mai["exit"], sum(call["output_tokens"] for call in mai["calls"])
        assert answer == document.answer, f"The answer is {answer}, not {document.answer}."
        assert reply_id not in self._ids, f"The id {reply_id} came twice."
        self._ids.add(reply_id)
        self.counts["streamed"] += streamed
        self.seconds.setdefault(mai["exit"], []).append(time.monotonic() - began)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        async with self._http.post("/v1/chat/completions", data=body, headers=headers) as response:
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


def started(folder: Path) -> tuple[psutil.Popen, str]:
    """Start `lmms-eval-mai serve` in a process of its own, and return its address."""
    log = folder / f"serve-{time.monotonic():.0f}.log"
    command = [COMMANDS / "lmms-eval-mai", "serve", "--pair", "demo", "--port", "0", "--model_args", "dtype=float32"]
    with log.open("w") as file:
        process = psutil.Popen([*map(str, command)], stdout=file, stderr=file)
    while (found := re.search(r"on (http://\S+)/v1:", " ".join(log.read_text().split()))) is None:
        if process.poll() is not None:
            raise SystemExit(f"The server did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    return process, found.group(1)


def reading(process: psutil.Popen) -> dict[str, float]:
    """Return the memory (MiB), sockets and threads of the server now."""
    return {
        "server MiB": process.memory_info().rss / 2**20,
        "engines MiB": sum(child.memory_info().rss for child in process.children(recursive=True)) / 2**20,
        "sockets": len(process.net_connections("tcp")),
        "threads": process.num_threads(),
    }


async def measure(
    process: psutil.Popen, url: str, documents: list[Document], given: argparse.Namespace, minutes: float
) -> tuple[Clients, list[dict[str, float]]]:
    """Let all clients ask. Returns them, and the readings of the server."""
    readings = []
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # uvicorn closes an idle connection after 5 s
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as http:
        clients, began = Clients(http, documents, given), time.monotonic()
        asking = asyncio.ensure_future(clients.ask_until(began + 60 * minutes))
        while not asking.done():
            await asyncio.wait({asking}, timeout=EVERY_S)
            readings.append({"s": time.monotonic() - began, **reading(process)})
        await asking
    return clients, readings


async def stopped(process: psutil.Popen, url: str, documents: list[Document], how: int) -> tuple[int, int]:
    """Send a signal to the server under load. Returns its exit code, and how many of its processes are left."""
    load = argparse.Namespace(clients=256, bad=0.0, disconnects=0.0, seed=1)
    asking = asyncio.ensure_future(measure(process, url, documents, load, 1))
    await asyncio.sleep(10)
    children = process.children(recursive=True)
    process.send_signal(how)
    code = await asyncio.to_thread(process.wait, 120)
    asking.cancel()
    await asyncio.sleep(1)
    return code, sum(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


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
        process, url = started(Path(name))
        clients, readings = asyncio.run(measure(process, url, documents, given, given.minutes))
        exit_code, left = asyncio.run(stopped(process, url, documents, signal.SIGTERM))
        killed, left_after_kill = asyncio.run(stopped(*started(Path(name)), documents, signal.SIGKILL))
    exits = clients.seconds | {"all": [s for found in clients.seconds.values() for s in found]}
    for exit, seconds in sorted(exits.items()):
        at = statistics.quantiles(seconds, n=100)
        print(f"{exit}: {len(seconds):,} answers, p50 {at[49]:.2f} s, p95 {at[94]:.2f} s, p99 {at[98]:.2f} s")
    print(f"Requests: {dict(clients.counts)}. Wrong or missing replies: {len(clients.problems)}.")
    print(*clients.problems[:20], sep="\n")
    print(f"Exit code and processes left after SIGTERM: {exit_code}, {left}. SIGKILL: {killed}, {left_after_kill}.")
    per_s, shown = len(exits["all"]) / readings[-1]["s"], readings[:: max(1, len(readings) // 10)]
    figures = {"answers_per_s": per_s, "problems": len(clients.problems), "readings": shown, "exit_code": exit_code}
    print_json("serve_load", {**vars(given), **figures, "left": left + left_after_kill})
    if clients.problems or exit_code or left or left_after_kill:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
