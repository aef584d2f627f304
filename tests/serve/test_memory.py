"""A server in a process of its own, under requests that are made to fill its memory or to use up its connections."""

import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL.PngImagePlugin import PngInfo
from support.serving import chat, image_url, start_command, user, wait_until, written

pytestmark = pytest.mark.long

MAX_OPEN, MAX_QUEUE, BODY_MIB, MEGAPIXELS = 3, 3, 4, 4
DESCRIPTORS = 256
REQUESTS = 12
Server = tuple[psutil.Process, str, Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The process of a server, its address and its log."""
    folder = tmp_path_factory.mktemp("server")
    own = [{"task": "chat", "doc_id": number, "text": "[[Yes]]"} for number in range(20 * REQUESTS)]
    answers = [{**record, "prompt": prompt} for record in own for prompt in ("simple", "task")]
    limits = {"max_queue": MAX_QUEUE, "max_body_mib": BODY_MIB, "max_image_megapixels": MEGAPIXELS}
    options = [f"--{name}={value}" for name, value in limits.items()]
    command, url = start_command(folder, *options, **written(folder, answers, answers), max_open_samples=MAX_OPEN)
    process = psutil.Process(command.process.pid)
    process.rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    yield process, url, folder / "log"
    process.terminate()
    code, log = command.end()
    assert code == 0, log


def memory_mib(process: psutil.Process, name: str) -> float:
    """Return a figure of the memory of a process: VmRSS (now) or VmHWM (the most so far)."""
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(found) / 1024


def limit_mib() -> float:
    """Return the most memory of the requests, by the formula in docs/serve.md."""
    pixels_mib, threads = MEGAPIXELS * 1e6 / 2**20, min(8, os.cpu_count() or 1)
    bodies, images = (MAX_OPEN + MAX_QUEUE) * (BODY_MIB + 2), (MAX_OPEN + 1) * 4 * pixels_mib
    return bodies + images + threads * (10 * BODY_MIB + 24 * pixels_mib + 50)


def texts_in_png(count: int) -> PngInfo:
    """Return texts that need 4 MiB each."""
    info = PngInfo()
    for number in range(count):
        info.add_itxt(str(number), "a" * (2**20 - 8) + "\N{GRINNING FACE}", zip=True)
    return info


def body(*urls: str, **fields: Any) -> bytes:
    own = {"messages": [user("Hm?", *urls)]} if urls else {}
    return json.dumps(chat() | own | fields, ensure_ascii=False).encode()


LARGE = (2000, 2000)
ASCII, PREFIX = "a" * (BODY_MIB * 2**20 - 2000), "data:image/png;base64,"
MIB, EMOJI = 2**20 - 2000, "\N{GRINNING FACE}"
"""One emoji makes Python store every character of a text with 4 bytes."""
HOSTILE = {
    "texts in images": (lambda: body(*[image_url((4, 4), pnginfo=texts_in_png(64))] * 16), 400),
    "a large PNG": (lambda: body(image_url(LARGE, "PNG", "RGBA")), 200),
    "a large WebP": (lambda: body(image_url(LARGE, "WEBP", "RGBA", lossless=True)), 200),
    "a large progressive JPEG": (lambda: body(image_url(LARGE, "JPEG", "CMYK", progressive=True)), 200),
    "values": (lambda: body(metadata={"a": [[]] * (MIB // 4)}), 200),
    "parts": (lambda: body(messages=[{"role": "user", "content": [{}] * 256}] * 900), 400),
    "very many values": (lambda: body(metadata={"a": [[]] * (len(ASCII) // 4)}), 413),
    "a text of 4 bytes a character": (lambda: body(user=PREFIX + ASCII + EMOJI), 200),
    "an image of 4 bytes a character": (lambda: body(PREFIX + ASCII + EMOJI), 400),
    "unknown fields": (lambda: body(**dict.fromkeys(map(str, range(MIB // 12)), 1)), 200),
}
"""Name -> request and the status of its reply."""


def test_memory_stays_below_the_formula_of_the_docs(server: Server) -> None:
    process, url, _ = server
    before = memory_mib(process, "VmRSS")
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client, ThreadPoolExecutor(REQUESTS) as pool:
        for name, (make, status) in HOSTILE.items():
            made = make()
            replies = pool.map(lambda _, made=made: client.post("/v1/chat/completions", content=made), range(REQUESTS))
            counts = Counter(reply.status_code for reply in replies)
            assert counts[status] > 0 and set(counts) <= {status, 429}, (name, counts)
            assert memory_mib(process, "VmHWM") - before < limit_mib(), name


def test_more_connections_than_descriptors_do_not_fill_the_log_and_others_are_answered_afterwards(
    server: Server,
) -> None:
    _, url, log = server
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as stack:
        for _ in range(2 * DESCRIPTORS):
            stack.enter_context(socket.create_connection(address, timeout=60))
    wait_until(lambda: httpx.get(f"{url}/health", timeout=60).status_code == 200)
    assert httpx.get(f"{url}/health", headers={"Host": "rebound.example"}).status_code == 400  # it needs no key
    assert "Traceback" not in log.read_text() and log.stat().st_size < 10_000
