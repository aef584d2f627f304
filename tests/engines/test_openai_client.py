"""The HTTP client of the openai engine: its environment, and replies that are no answer."""

import asyncio
import gc
import warnings
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from scripted_server import ScriptedServer
from support.endpoints import call, engine_of, served, with_servers

from lmms_eval_mai.engines.openai.client import served_models
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.options import proxy_of
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError


def test_requests_use_the_proxy_of_the_environment_and_the_key_whatever_netrc_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"data": [{"id": "a"}]})

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{runner.addresses[0][1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        (tmp_path / "netrc").write_text("default login me password mine")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        engine = engine_of("http://model.invalid/v1")
        await engine.start()
        await engine.close()
        await runner.cleanup()

    asyncio.run(run())
    assert (seen[0].headers["Host"], seen[0].headers["Authorization"]) == ("model.invalid", "Bearer sk-1")


def test_no_proxy_is_used_for_the_addresses_in_no_proxy_and_the_proxy_of_a_scheme_comes_before_all_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("all_proxy", "socks5://proxy:1080")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_of("http://a.inside.example:8000/v1") is None
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert proxy_of("https://outside.example/v1") == "http://proxy.example:3128"


def test_a_proxy_that_cannot_be_used_for_the_second_endpoint_leaves_no_open_session_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("https_proxy", "socks5://proxy:1080")
    engine = engine_of("[http://127.0.0.1:9/v1,https://b.invalid/v1]")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(EngineStartError, match=r"proxy for https://b.invalid/v1 that is not an HTTP proxy"):
            asyncio.run(engine.start())
        gc.collect()
    assert [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)] == []


def test_a_call_of_an_engine_that_is_closed_while_it_is_retried_is_not_retried_again() -> None:
    async def close_during_retry(engine: OpenAIEngine) -> Any:
        server.faults.append((503, {"Retry-After": "1"}))
        calling = asyncio.ensure_future(call(engine))
        while server.faults:
            assert not calling.done(), calling
            await asyncio.sleep(0.01)
        await engine.close()
        return await asyncio.wait_for(calling, 5)

    server = ScriptedServer()
    error = with_servers([server], close_during_retry, retry_for=60)
    assert isinstance(error, EngineNotRunning) and "was closed during t document 0, small short" in str(error)
    assert len(server.seen) == 1


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

    async def wait(url: str) -> float:
        engine = engine_of(url)
        await engine.start()
        calling = asyncio.ensure_future(call(engine))
        seconds = None
        while seconds is None:
            await asyncio.sleep(0.005)
            seconds = keepalive_seconds(urlsplit(url).port or 0) if server.seen else None
        calling.cancel()
        await engine.close()
        return seconds

    with served(server) as url:
        assert 0 < asyncio.run(asyncio.wait_for(wait(url), 10)) <= 30


def test_a_list_of_models_without_models_is_empty() -> None:
    assert served_models({"data": [{"id": "a", "max_model_len": 100}, {"id": "b"}]}) == {"a": 100, "b": None}
    for reply in ("<html>", {}, {"data": None}, {"data": ["a"]}, []):
        assert served_models(reply) == {}
