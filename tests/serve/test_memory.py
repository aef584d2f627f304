"""A server in a process of its own, under requests that are made to fill its memory or to use up its connections."""

import base64
import io
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import PIL.Image
import pytest
from PIL.PngImagePlugin import PngInfo
from support.serving import chat, user, wait_until, written

pytestmark = pytest.mark.slow

MAX_OPEN, MAX_QUEUE, BODY_MIB, MEGAPIXELS = 3, 3, 4, 4
DESCRIPTORS = 256
REQUESTS = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The process of a server, its address and its log."""
    folder = tmp_path_factory.mktemp("server")
    answers = [
        {"task": "chat", "doc_id": number, "stage": stage, "text": "[[Yes]]"}
        for number in range(20 * REQUESTS)
        for stage in ("short", "task")
    ]
    model_args = written(folder, answers, answers) | {"max_open_samples": MAX_OPEN}
    limits = {"max-queue": MAX_QUEUE, "max-body-mib": BODY_MIB, "max-image-megapixels": MEGAPIXELS}
    command = [sys.executable, "-m", "lmms_eval_mai", "serve", "--port", "0", "--served-name", "pair"]
    command += [f"--{name}={value}" for name, value in limits.items()]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in model_args.items())]
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, preexec_fn=_limit_descriptors)
    try:
        wait_until(lambda: "/v1: " in " ".join(log.read_text().split()) or process.poll() is not None)
        (url,) = re.findall(r"on (http://\S+)/v1:", log.read_text()) or [log.read_text()]
        yield process, url, log
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()[-3000:]


def _limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS // 2, DESCRIPTORS))


def memory_mib(process: "subprocess.Popen[bytes]", name: str) -> float:
    """Return a figure of the memory of a process: VmRSS (now) or VmHWM (the most so far)."""
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(found) / 1024


def limit_mib() -> float:
    """Return the most memory of the requests, by the formula in docs/serve.md."""
    pixels_mib, threads = MEGAPIXELS * 1e6 / 2**20, min(8, os.cpu_count() or 1)
    bodies, images = (MAX_OPEN + MAX_QUEUE) * BODY_MIB, MAX_OPEN * 4 * pixels_mib
    return bodies + images + threads * (10 * BODY_MIB + 24 * pixels_mib)


def image_url(mode: str, kind: str, side: int = 2000, texts: int = 0, **options: Any) -> str:
    """Return an image with a few bytes and many pixels, or with texts that need 4 MiB each."""
    file, info = io.BytesIO(), PngInfo()
    for number in range(texts):
        info.add_itxt(str(number), "a" * (2**20 - 8) + "\N{GRINNING FACE}", zip=True)
    PIL.Image.new(mode, (side, side)).save(file, kind, **options, **({"pnginfo": info} if texts else {}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def with_images(*urls: str) -> bytes:
    return json.dumps(chat() | {"messages": [user("Hm?", *urls)]}, ensure_ascii=False).encode()


def with_field(name: str, value: Any) -> bytes:
    """Return a request with one more field."""
    return json.dumps(chat() | {name: value}, ensure_ascii=False).encode()


ASCII = "a" * (BODY_MIB * 2**20 - 2000)
EMOJI = "\N{GRINNING FACE}"
"""One such character makes Python store every character of a text with 4 bytes."""
HOSTILE = {
    "texts in images": (lambda: with_images(*[image_url("RGB", "PNG", 4, texts=64)] * 16), 400),
    "a large PNG": (lambda: with_images(image_url("RGBA", "PNG")), 200),
    "a large WebP": (lambda: with_images(image_url("RGBA", "WEBP", lossless=True)), 200),
    "a large progressive JPEG": (lambda: with_images(image_url("CMYK", "JPEG", progressive=True)), 200),
    "values": (lambda: with_field("metadata", {"a": [[]] * 90_000}), 200),
    "very many values": (lambda: with_field("metadata", {"a": [[]] * (len(ASCII) // 8)}), 413),
    "a text of 4 bytes a character": (lambda: with_field("user", ASCII + EMOJI), 200),
    "an image of 4 bytes a character": (lambda: with_images("data:image/png;base64," + ASCII + EMOJI), 400),
    "wrong fields": (lambda: with_field("user", dict.fromkeys(map(str, range(40_000)), 1)), 400),
}
"""Name -> request and the status of its reply."""


def test_memory_stays_below_the_formula_of_the_docs(server: "tuple[subprocess.Popen[bytes], str, Path]") -> None:
    process, url, _ = server
    before = memory_mib(process, "VmRSS")
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client, ThreadPoolExecutor(REQUESTS) as pool:
        for name, (make, status) in HOSTILE.items():
            body = make()
            replies = pool.map(lambda _, body=body: client.post("/v1/chat/completions", content=body), range(REQUESTS))
            counts = Counter(reply.status_code for reply in replies)
            assert counts[status] > 0 and set(counts) <= {status, 429}, (name, counts)
            assert memory_mib(process, "VmHWM") - before < limit_mib(), name
    # The images of the requests were freed, although no garbage collection was forced.
    wait_until(lambda: memory_mib(process, "VmRSS") - before < limit_mib() / 4)


def test_more_connections_than_descriptors_do_not_fill_the_log(
    server: "tuple[subprocess.Popen[bytes], str, Path]",
) -> None:
    _, url, log = server
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(DESCRIPTORS)]
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 503 ")
    wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
    assert httpx.get(f"{url}/health", headers={"Host": "rebound.example"}).status_code == 400  # it needs no key
    assert "Traceback" not in log.read_text() and log.stat().st_size < 10_000
