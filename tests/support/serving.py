"""The server of `lmms-eval-mai serve` on scripted engines, in this process or in one of its own, and its clients."""

import asyncio
import base64
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from PIL import Image
from support.pair import Records, in_turn, records, written
from support.processes import Command

from lmms_eval_mai.run.config import parse
from lmms_eval_mai.serve import Settings
from lmms_eval_mai.serve.server import bind, serve, server_of
from lmms_eval_mai.serve.service import Service


def chat_records(count: int, **fields: Any) -> Records:
    """Return the answers of both models to the requests 0, 1 ...; request i leaves at `exit_of(i)` and has an answer
    with its number. `fields`: further fields of all records."""
    made = records("chat", [in_turn(number, f"answer {number}", "no") for number in range(count)], **fields)
    for one in made["large"]:
        if one["prompt"] == "task":
            one["text"] = f"Once upon a time [[{one['doc_id']}]]"
    return made


def scripted(folder: Path, count: int = 12, hanging: bool = False, **fields: Any) -> dict[str, Any]:
    """Return the model arguments of scripted engines. `hanging`: they answer one request at a time, and never the
    first one."""
    made = chat_records(count, **fields)
    for one in (*made["small"], *made["large"]):
        if hanging and one["doc_id"] == 0:
            one["fault"] = "hang"
    return written(folder, made) | ({"slots": 1, "max_open_samples": 1} if hanging else {})


def image_url(size: tuple[int, int] = (8, 6), format: str = "PNG") -> str:
    """Return a black image as a data URL."""
    return data_url(Image.new("RGB", size), format)


def data_url(image: Image.Image, format: str = "PNG") -> str:
    """Return an image as a data URL."""
    file = io.BytesIO()
    image.save(file, format)
    return f"data:image/{format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def user(text: str, *images: str) -> dict[str, Any]:
    """Return a turn of the user."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def chat(text: str = "Is there a dog in the image?", **fields: Any) -> dict[str, Any]:
    """Return the body of a request with an image."""
    return {"model": "pair", "messages": [user(text, image_url())], **fields}


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def start_command(folder: Path, *options: str, **model_args: Any) -> tuple[Command, str]:
    """Start `lmms-eval-mai serve` in a process of its own, with the key `the-key` in `SERVER_KEY`. Return the process
    and the address of the server, when it runs."""
    given = ",".join(f"{name}={value}" for name, value in model_args.items())
    log, settings = folder / "log", {"environment": {"SERVER_KEY": "the-key"}}
    arguments = ["serve", "--port", "0", "--served_name", "pair", "--model_args", given, *options]
    command = Command(folder, log, *arguments, name="lmms-eval-mai", **settings)
    deadline = time.monotonic() + 400
    while not (found := re.search(r"on (http://\S+)/v1:", " ".join(log.read_text().split()))):
        assert command.process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.01)
    return command, found.group(1)


@dataclass
class Running:
    """A server that runs in threads of this process."""

    service: Service
    server: uvicorn.Server
    url: str
    thread: threading.Thread
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def post(self, body: Any, **options: Any) -> httpx.Response:
        """Send a request with this body, which is JSON or bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return self.client.post("/v1/chat/completions", content=content, headers=headers, **options)

    def ask(self, text: str = "Is there a dog in the image?", **fields: Any) -> dict[str, Any]:
        """Return the reply to a question with an image."""
        response = self.post(chat(text, **fields))
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def refused(self, body: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the error of a request."""
        response = self.post(body, **options)
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
        return response.status_code, error

    def requests(self) -> int:
        """Return how many requests the server has now."""
        found: int = self.client.get("/health").json()["requests"]
        return found


@contextmanager
def serving(settings: dict[str, Any] | None = None, **model_args: Any) -> Iterator[Running]:
    """Run a server with these settings and model arguments."""
    gen_kwargs = model_args.pop("gen_kwargs", {})
    service = Service(
        parse({"store": "off", **model_args}), gen_kwargs, Settings(model_name="pair", **(settings or {}))
    )
    service.start()
    with bind("127.0.0.1", 0) as bound:
        server = server_of(service)
        thread = threading.Thread(target=lambda: asyncio.run(serve(service, server, bound)), daemon=True)
        running = Running(service, server, f"http://127.0.0.1:{bound.getsockname()[1]}", thread)
        thread.start()
        try:
            yield running
        finally:
            running.client.close()
            server.should_exit = True
            thread.join(30)
            service.stop()
    assert not thread.is_alive()
