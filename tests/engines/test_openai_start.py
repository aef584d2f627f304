"""Starts of the openai engine that fail: servers, keys, models and arguments that cannot work."""

import asyncio
from typing import Any

import pytest
from scripted_server import ScriptedServer
from support.endpoints import call, engine_of, with_servers

from lmms_eval_mai.contract import Call
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.errors import ArgumentError, EngineStartError
from lmms_eval_mai.run.config import parse


def start_error(server: ScriptedServer, **arguments: Any) -> str:
    """Return the message of the engine's failed start."""
    with pytest.raises(EngineStartError) as error:
        with_servers([server], call, **arguments)
    return str(error.value)


def test_a_server_that_is_missing_or_hangs_is_refused_after_retry_for_seconds() -> None:
    with pytest.raises(EngineStartError, match=r"small=http://127.0.0.1:9/v1 did not answer for 0.1 s \(Connection"):
        asyncio.run(engine_of("http://127.0.0.1:9/v1", retry_for=0.1).start())
    error = start_error(ScriptedServer(silent=True), request_timeout=0.2, retry_for=0.1)
    assert "did not answer for 0.1 s (no answer within 0.2 s)" in error


@pytest.mark.slow
def test_a_server_that_accepts_connections_before_it_answers_is_waited_for() -> None:
    server = ScriptedServer(silent=True)

    async def start_and_call(engine: OpenAIEngine) -> Any:
        asyncio.get_running_loop().call_later(0.2, setattr, server, "silent", False)
        await engine.start()
        return await call(engine)

    assert isinstance(with_servers([server], start_and_call, start=False, request_timeout=1, retry_for=60), Call)


def test_a_wrong_key_is_refused_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer(key="sk-right")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "OPENAI_API_KEY is not set" in start_error(server)
    monkeypatch.setenv("MINE", "sk-wrong-one")
    text = start_error(server, api_key_env="MINE")
    assert "refuses the key in MINE" in text and "sk-wrong-one" not in text and "<key>" in text
    monkeypatch.setenv("MINE", "sk-right")
    assert isinstance(with_servers([server], call, api_key_env="MINE"), Call)
    monkeypatch.setenv("MINE", "sk-right\n")  # as in mounted secrets
    assert isinstance(with_servers([server], call, api_key_env="MINE"), Call)
    monkeypatch.setenv("MINE", "sk-ri\x07ght")
    with pytest.raises(ArgumentError, match="contains characters that are not printable ASCII") as error:
        engine_of("http://host/v1", api_key_env="MINE")
    assert "sk-ri" not in str(error.value)


def test_a_wrong_model_name_is_refused_and_the_served_models_are_listed() -> None:
    server = ScriptedServer(models=("a", "b"))
    assert "serves a, b, and not c. Set small_model to one of the served names." in start_error(server, model="c")
    assert "serves a, b. Set small_model to one of the served names." in start_error(server)
    assert "serves no model. Check the server." in start_error(ScriptedServer(models=()), model="c")
    assert isinstance(with_servers([server], call, model="b"), Call) and server.seen[0]["model"] == "b"


def test_a_server_that_does_not_list_its_models_needs_the_name_of_one() -> None:
    server = ScriptedServer(lists_models=False)
    assert "does not list its models" in start_error(server)
    assert isinstance(with_servers([server], call, model="scripted"), Call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"small": "http://user:pw@host/v1"}, "a user name, a password or a query"),
        ({"small": "http:///v1"}, "is not the address"),
        ({"small": "http://host:99999/v1"}, "is not the address"),
        ({"small": "HTTP://host:port/v1"}, "is not the address"),
        ({"small": "[http://a:99999/v1,http://user:pw@b/v1]"}, "small=http://a:99999/v1 is not the address"),
        ({"small": "[http://a/v1,http//user:pw@b/v1]"}, "small=b/v1 is not the address"),
        ({"small": "http://user:pw@host/v1", "small_engine": "vllm"}, "is the address of an endpoint"),
        ({"small": "http://host/v1", "small_concurrency": 2.5}, "concurrency=2.5"),
        ({"small": "http://host/v1", "small_api_key_env": "NOT_THERE"}, "no environment variable NOT_THERE"),
        ({"small": "http://host/v1", "small_retry_for": -1}, "retry_for=-1"),
        ({"small": "http://host/v1", "small_api_key": "sk-1"}, "Unknown model argument 'api_key'"),
        ({"small": "http://host/v1", "small_engine": "vllm"}, "is the address of an endpoint, but small_engine=vllm"),
        ({"small": "a/path", "engine": "openai"}, "engine=openai needs the address of an endpoint, and small=a/path"),
        ({"engine": "openai"}, "has no default model: give small=http://HOST:PORT/v1"),
    ],
)
def test_an_invalid_argument_is_refused_before_any_request(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        config = parse({"mode": "small", **arguments})
        build(config.small).validate()
    assert words in str(error.value) and "pw@" not in str(error.value) and "sk-1" not in str(error.value)
