"""The HTTP client of the openai engine: its environment, its images, and replies that are no answer."""

import asyncio
import io
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import PIL.Image
import pytest
from aiohttp import web
from scripted_server import ScriptedServer
from support.endpoints import call, prompt, with_servers

from lmms_eval_mai.engines.openai.client import Client, proxy_of
from lmms_eval_mai.engines.openai.endpoints import EndpointPool, RequestFailed
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.errors import to_mai_error
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.engines.openai.png import encode_png
from lmms_eval_mai.engines.openai.replies import served_models, to_call
from lmms_eval_mai.errors import EngineCrashed, EngineStartError, SampleError


def test_requests_use_the_proxy_and_the_account_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"data": []})

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{runner.addresses[0][1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        client = Client("http://model.invalid/v1", "sk-1", 5)
        assert await client.get("models", 5) == {"data": []}
        await client.close()
        await runner.cleanup()

    asyncio.run(run())
    headers = seen[0].headers
    assert (headers["Host"], headers["Authorization"], headers["OpenAI-Organization"]) == (
        "model.invalid", "Bearer sk-1", "org-1")  # fmt: skip


def test_no_proxy_is_used_for_the_addresses_in_no_proxy_and_only_http_proxies_are_supported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("all_proxy", "socks5://proxy:1080")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_of("http://a.inside.example:8000/v1") is None
    with pytest.raises(EngineStartError, match="not an HTTP proxy"):
        proxy_of("https://outside.example/v1")
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    assert proxy_of("https://outside.example/v1") == "http://proxy.example:3128"


def test_a_request_after_the_engine_was_closed_is_not_retried() -> None:
    async def run() -> None:
        pool = EndpointPool("small", ["http://127.0.0.1:9/v1"], "", 60, 5, 1)
        await pool.endpoints[0].client.close()
        with pytest.raises(RequestFailed, match="the engine was closed") as failed:
            await asyncio.wait_for(pool.request(pool.endpoints, lambda client: client.get("models", 5)), 5)
        error = to_mai_error(prompt(), "small=http://127.0.0.1:9", "m", OpenAIOptions(), failed.value, pool)
        assert isinstance(error, EngineCrashed) and "was closed during" in str(error)

    asyncio.run(run())


def keepalive_seconds(port: int) -> float | None:
    """Return after how many seconds the system probes the other end of a connection to this port. None: never."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, _, _, timer, *_ = line.split()
        kind, _, hundredths = timer.partition(":")
        if int(remote.partition(":")[2], 16) == port and kind == "02":
            return int(hundredths, 16) / 100
    return None


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="not Linux")
def test_a_connection_that_waits_for_a_reply_is_probed_so_that_a_lost_machine_is_noticed() -> None:
    server = ScriptedServer(faults=deque(["hang"]))

    async def wait(engine: OpenAIEngine) -> float:
        port = urlsplit(engine._urls[0]).port or 0
        calling = asyncio.ensure_future(call(engine))
        seconds = None
        while seconds is None:
            await asyncio.sleep(0.005)
            seconds = keepalive_seconds(port) if server.seen else None
        calling.cancel()
        return seconds

    assert 0 < with_servers([server], lambda engine: asyncio.wait_for(wait(engine), 10)) <= 30


@pytest.mark.parametrize("size", [(1, 1), (5, 1), (1, 4), (31, 17)])
def test_a_png_file_has_the_pixels_of_its_image(size: tuple[int, int]) -> None:
    image = PIL.Image.merge("RGB", [PIL.Image.effect_noise(size, 90) for _ in range(3)])
    found = PIL.Image.open(io.BytesIO(encode_png(image)))
    assert (found.format, found.mode, found.tobytes()) == ("PNG", "RGB", image.tobytes())


CHOICE = {"finish_reason": "stop", "message": {"content": "[[Yes]]"}}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("<html>Welcome</html>", "no choices or no token counts"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"choices": [], "usage": None}, "no choices or no token counts"),
        ({"choices": [CHOICE], "usage": None}, "no choices or no token counts"),
        ({"choices": [{"message": None}], "usage": {}}, "no choices or no token counts"),
        (None, "no choices or no token counts"),
    ],
)
def test_a_reply_that_is_no_chat_answer_is_an_error_of_its_sample(reply: Any, words: str) -> None:
    with pytest.raises(SampleError, match="the server returned no answer") as error:
        to_call(prompt(), reply, 1.0)
    assert words in str(error.value)


def test_a_list_of_models_without_models_is_empty() -> None:
    assert served_models({"data": [{"id": "a", "max_model_len": 100}, {"id": "b"}]}) == {"a": 100, "b": None}
    for reply in ("<html>", {}, {"data": None}, {"data": ["a"]}, []):
        assert served_models(reply) == {}
