"""The clients of `serve_load.py`: their requests, and the checks of the replies."""

import asyncio
import base64
import io
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from lmms_eval_mai.paper.prompts import instruction
from lmms_eval_mai.plugin import task_dir

PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Document:
    """A document and its answer in an lmms-eval run."""

    body: dict[str, Any]
    """The request that asks it."""
    text: str
    exit: str
    output_tokens: int


def documents_of(samples: Path) -> list[Document]:
    """Return the documents of an lmms-eval run of `shapes_s`. `samples`: what `--log_samples` wrote."""
    import datasets

    data = datasets.load_dataset("parquet", data_files=str(task_dir() / "shapes" / "test.parquet"), split="train")
    found = []
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        trace = sample["token_counts"][0]
        tokens = sum(call["output_tokens"] for call in trace["calls"])
        answers = sample["filtered_resps"]  # one answer, as a text or in a list
        text = answers if isinstance(answers, str) else answers[0]
        found.append(Document(body_of(data[sample["doc_id"]]), text, trace["exit"], tokens))
    return found


def body_of(doc: dict[str, Any]) -> dict[str, Any]:
    """Return the request for a document, with the question as the task asks it."""
    file = io.BytesIO()
    doc["image"].save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"model": "demo", "messages": [{"role": "user", "content": content}], "mai": {"benchmark": "shapes"}}


def bad_bodies(body: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return bad requests with the status that each must get."""
    text = json.dumps(body)
    broken_url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    address = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/image.png"}}

    def with_image(part: dict[str, Any]) -> dict[str, Any]:
        return body | {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Hm?"}]}]}

    wrong = [
        body | {"n": 2},
        body | {"temperature": "hot"},
        body | {"tools": [{}]},
        body | {"messages": []},
        with_image(broken_url),
        with_image(address),
    ]
    bodies = [(json.dumps(one).encode(), 400) for one in wrong]
    bodies.append((json.dumps(body | {"model": "gpt"}).encode(), 404))
    bodies.append((text[: len(text) // 2].encode(), 400))
    bodies.append((b"[" * 100_000, 400))
    return bodies


@dataclass(frozen=True)
class Answer:
    """An answered request."""

    exit: str
    seconds: float


class Clients:
    """Clients that ask documents one after the other, and what they found."""

    def __init__(
        self, url: str, documents: list[Document], count: int, bad: float, disconnects: float, seed: int
    ) -> None:
        self.url, self.count = url, count
        self.answered: list[Answer] = []
        self.problems: list[str] = []
        self._documents, self._bad, self._disconnects, self._rng = documents, bad, disconnects, random.Random(seed)
        self._bodies = [json.dumps(document.body).encode() for document in documents]
        self._streamed = [json.dumps(one.body | {"stream": True}).encode() for one in documents]
        self._bad_bodies = bad_bodies(documents[0].body)
        self._ids: set[str] = set()
        self._found: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()

    async def __aenter__(self) -> Self:
        # uvicorn closes a connection that nobody used for 5 s.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        timeout = aiohttp.ClientTimeout(total=600)
        self._http = aiohttp.ClientSession(self.url, connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._http.close()

    async def metrics(self) -> str:
        """Return the metrics of the server."""
        async with self._http.get("/metrics") as response:
            return await response.text()

    async def ask_until(self, end: float) -> None:
        """Let all clients ask until a time of `time.monotonic`, and wait for their last replies."""

        async def client() -> None:
            while time.monotonic() < end:
                try:
                    await self._ask_once()
                except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                    self.problems.append(f"No usable reply: {type(error).__name__}: {error}")

        await asyncio.gather(*(client() for _ in range(self.count)))

    async def _ask_once(self) -> None:
        drawn, number = self._rng.random(), self._rng.randrange(len(self._documents))
        if drawn < self._bad:
            await self._ask_badly(*self._rng.choice(self._bad_bodies))
        elif drawn < self._bad + self._disconnects:
            await self._give_up(self._bodies[number], self._rng.random() / 2)
        else:
            await self._ask(number, streamed=self._rng.random() < 0.1)

    async def _ask(self, number: int, streamed: bool) -> None:
        began = time.monotonic()
        async with self._http.post(PATH, data=(self._streamed if streamed else self._bodies)[number]) as response:
            body = await response.read()
        seconds = time.monotonic() - began
        self._statuses[response.status] += 1
        if response.status != 200:
            self.problems.append(f"Document {number} got the status {response.status}: {body[:300]!r}")
            return
        reply_id, text, mai = (parts_of_stream if streamed else parts_of_reply)(body)
        tokens = sum(call["output_tokens"] for call in mai["calls"])
        expected = self._documents[number]
        if (text, mai["exit"], tokens) != (expected.text, expected.exit, expected.output_tokens):
            self._found["wrong answers"] += 1
            text = f"{text!r} by {mai['exit']}, and not {expected.text!r} by {expected.exit}"
            self.problems.append(f"Document {number}: {text}")
        if reply_id in self._ids:
            self._found["duplicates"] += 1
            self.problems.append(f"The id {reply_id} came twice.")
        self._ids.add(reply_id)
        self._found["streamed"] += streamed
        self.answered.append(Answer(mai["exit"], seconds))

    async def _ask_badly(self, body: bytes, status: int) -> None:
        async with self._http.post(PATH, data=body) as response:
            reply = await response.json()
        self._statuses[response.status] += 1
        self._found["bad requests"] += 1
        if response.status != status or not reply["error"]["message"]:
            self.problems.append(f"A bad request got the status {response.status} and not {status}: {reply}")

    async def _give_up(self, body: bytes, seconds: float) -> None:
        """Send a request on a connection of its own, and close it."""
        self._found["disconnects"] += 1
        async with aiohttp.ClientSession(self.url) as own:
            try:
                async with asyncio.timeout(seconds), own.post(PATH, data=body) as response:
                    await response.read()
                self._statuses[response.status] += 1
                self._found["answered before the disconnect"] += 1
            except TimeoutError:
                self._found["given up"] += 1

    def check_replies(self, metrics: str) -> None:
        """Compare the replies that the server counted with those that the clients got."""
        counted = {
            int(status): int(float(count))
            for status, count in re.findall(r'^mai_replies_total\{status="(\d+)"\} (\S+)', metrics, re.MULTILINE)
        }
        gone = counted.pop(499, 0)
        # A reply may be sent at the moment at which its client gives up. It is counted as 200, and nobody got it. A
        # request that is given up before its headers arrive is not counted.
        missed = counted.get(200, 0) - self._statuses[200]
        others = {status: count for status, count in counted.items() if status != 200}
        expected = {status: count for status, count in self._statuses.items() if status != 200}
        if others != expected or missed < 0 or gone + missed > self._found["given up"]:
            self.problems.append(f"The server counted {counted} and {gone} x 499; the clients got {self._statuses}.")
        self._found["given up, counted as 499"] = gone
        self._found["given up while the reply was sent"] = missed

    def counts(self) -> dict[str, int]:
        """Return the numbers of all requests."""
        names = ("streamed", "wrong answers", "duplicates", "bad requests", "disconnects", "given up",
                 "given up, counted as 499", "given up while the reply was sent")  # fmt: skip
        found = {"answered": len(self.answered), **{name: self._found[name] for name in names}}
        return {**found, "problems": len(self.problems)}


def parts_of_reply(body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Return the id, the answer and the field `mai` of a reply."""
    reply = json.loads(body)
    return reply["id"], reply["choices"][0]["message"]["content"], reply["mai"]


def parts_of_stream(body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Return the same of a streamed reply."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        raise ValueError(f"The stream ended with {lines[-1][:300]}")
    chunks = [json.loads(line) for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return chunks[0]["id"], text, next(chunk["mai"] for chunk in chunks if "mai" in chunk)


def metric(metrics: str, name: str, **labels: str) -> float:
    """Return a value of the metrics."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    found = re.search(rf"^{name}\{{{re.escape(inside)}\}} (\S+)", metrics, re.MULTILINE)
    return float(found.group(1)) if found else 0.0
