"""What the client does with an endpoint that fails: a real HTTP server on loopback, without a model."""

import asyncio
import base64
import io
import time
from collections.abc import Awaitable, Callable
from typing import Any

import PIL.Image
import pytest
from aiohttp import web
from scripted_server import ScriptedServer

from lmms_eval_mai.engines.base import Call, CallKey, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.images import _ENCODINGS
from lmms_eval_mai.errors import (
    ArgumentError,
    CallTimeout,
    EngineCrashed,
    EngineStartError,
    MaiError,
    PromptTooLong,
    SampleError,
)
from lmms_eval_mai.run.config import parse

SAMPLING = Sampling(max_tokens=16)


def picture(size: tuple[int, int] = (64, 48)) -> Image:
    return Image(PIL.Image.effect_noise(size, 60).convert("RGB"), f"noise-{size}")


def prompt(doc_id: int = 0, image: Image | None = None, text: str = "What is it?") -> Prompt:
    blocks = (image, text, " Answer.") if image else (text,)
    return Prompt((Message("user", blocks),), CallKey("t", doc_id, 0, "small", "short"))


def engine_of(urls: str, **arguments: Any) -> OpenAIEngine:
    config = parse({"small": urls, "mode": "small", **{f"small_{name}": value for name, value in arguments.items()}})
    engine = build(config.small)
    assert isinstance(engine, OpenAIEngine)
    engine.validate()
    return engine


def with_servers(
    servers: list[ScriptedServer], use: Callable[[OpenAIEngine], Awaitable[Any]], start: bool = True, **arguments: Any
) -> Any:
    """What `use` makes of an engine on these servers."""

    async def run() -> Any:
        runners, urls = [], []
        for server in servers:
            runners.append(web.AppRunner(server.app(), shutdown_timeout=0.1))
            await runners[-1].setup()
            site = web.TCPSite(runners[-1], "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{runners[-1].addresses[0][1]}/v1")
        engine = engine_of(f"[{','.join(urls)}]", **{"retry_for": 5, **arguments})
        try:
            if start:
                await engine.start()
            return await use(engine)
        finally:
            await engine.close()
            for runner in runners:
                await runner.cleanup()

    return asyncio.run(run())


async def ask(engine: OpenAIEngine) -> Any:
    return (await asyncio.gather(engine.generate(prompt(), SAMPLING), return_exceptions=True))[0]


@pytest.mark.parametrize("fault", [(429, {}), (500, {}), (503, {}), (408, {}), "drop"])
def test_what_may_pass_is_asked_again(fault: Any) -> None:
    server = ScriptedServer()
    server.faults.extend([fault, fault])
    call = with_servers([server], ask)
    assert isinstance(call, Call) and (call.text, call.finish_reason) == ("[[Yes]]", "stop")
    assert (call.prompt_tokens, call.cached_tokens, call.output_tokens) == (50, 32, 5)
    assert len(server.seen) == 3 and server.answered == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_will_not_pass_is_the_samples_error_at_once(status: int) -> None:
    server = ScriptedServer()
    server.faults.append((status, {}))
    error = with_servers([server], ask)
    assert isinstance(error, SampleError) and f"a fault with status {status}" in str(error)
    assert "t document 0, small short" in str(error) and len(server.seen) == 1


def test_the_server_says_how_long_to_wait() -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": "2"}))

    async def timed(engine: OpenAIEngine) -> float:
        began = time.monotonic()
        assert isinstance(await ask(engine), Call)
        return time.monotonic() - began

    assert with_servers([server], timed) >= 2


def test_a_pause_beyond_the_window_is_not_waited_for() -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": "3600"}))
    error = with_servers([server], ask)
    assert isinstance(error, SampleError) and "failed for small_retry_for=5 s" in str(error)


def test_a_server_that_is_gone_is_a_dead_engine_for_all_calls_in_flight() -> None:
    async def gone(engine: OpenAIEngine) -> list[Any]:
        server.faults.extend(["drop"] * 1000)
        return await asyncio.gather(*(engine.generate(prompt(i), SAMPLING) for i in range(8)), return_exceptions=True)

    server = ScriptedServer()
    errors = with_servers([server], gone, retry_for=1)
    assert all(isinstance(error, EngineCrashed) for error in errors), errors
    assert "did not answer for small_retry_for=1 s" in str(errors[0])


def test_an_answer_that_does_not_come_is_the_samples_error_and_not_asked_again() -> None:
    server = ScriptedServer()
    server.faults.append("hang")
    error = with_servers([server], ask, request_timeout=0.5)
    assert isinstance(error, CallTimeout) and "within small_request_timeout=0.5 s" in str(error)
    assert len(server.seen) == 1


def test_an_answer_that_was_broken_off_is_no_answer() -> None:
    server = ScriptedServer()
    server.faults.append("abort")
    error = with_servers([server], ask)
    assert isinstance(error, SampleError) and "ended the answer with 'abort'" in str(error)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "it refused: I will not."),
        ({"role": "assistant", "content": None, "reasoning_content": "Let me see."}, "splits off reasoning"),
    ],
)
def test_an_answer_without_a_text_is_no_answer(message: dict[str, Any], words: str) -> None:
    error = with_servers([ScriptedServer(message=message)], ask)
    assert isinstance(error, SampleError) and words in str(error)


def test_one_request_that_breaks_its_connection_is_its_samples_error_where_others_are_answered() -> None:
    server = ScriptedServer(unanswerable="poison", seconds=0.01)

    async def ask_all(engine: OpenAIEngine) -> tuple[Any, list[Any]]:
        bad = asyncio.ensure_future(asyncio.gather(engine.generate(prompt(0, text="poison"), SAMPLING),
                                                   return_exceptions=True))  # fmt: skip
        good = []
        while not bad.done():
            good.append(await engine.generate(prompt(1), SAMPLING))
            await asyncio.sleep(0.05)
        return (await bad)[0], good

    error, good = with_servers([server], ask_all, retry_for=3)
    assert isinstance(
        error, SampleError
    ) and "breaks this request off for small_retry_for=3 s, and answers others" in str(error)
    assert len(good) > 10


def test_a_server_that_tells_its_context_gets_all_that_decides_a_token_and_no_more_tokens_than_it_has() -> None:
    server = ScriptedServer(context=1000)

    async def ask_long(engine: OpenAIEngine) -> None:
        await engine.generate(prompt(), Sampling(max_tokens=4096))

    with_servers([server], ask_long)
    assert {name: server.seen[0][name] for name in ("max_tokens", "top_k", "repetition_penalty")} == {
        "max_tokens": 1000, "top_k": 0, "repetition_penalty": 1.0,
    }  # fmt: skip


def test_thinking_cannot_be_shortened_on_a_server_without_a_tokenizer() -> None:
    async def truncate_thinking(engine: OpenAIEngine) -> Any:
        return await engine.truncate_thinking(prompt(0, text="Think: abc. Answer."), "abc", SAMPLING)

    with pytest.raises(PromptTooLong, match="has no /tokenize with which to shorten it"):
        with_servers([ScriptedServer(context=1000)], truncate_thinking)


def test_replicas_that_serve_different_models_are_refused() -> None:
    with pytest.raises(EngineStartError, match="serve different ones"):
        with_servers([ScriptedServer(models=("a",)), ScriptedServer(models=("b",))], ask)


def test_what_is_served_and_not_where_is_the_engines_identity() -> None:
    async def identity(engine: OpenAIEngine) -> Any:
        return engine.identity()

    first, moved = (with_servers([ScriptedServer(models=("a",))], identity) for _ in range(2))
    other = with_servers([ScriptedServer(models=("b",))], identity)
    assert first == moved and first["model"] == "a" and other["model"] == "b"


def test_calls_of_a_sample_go_to_one_replica_and_to_another_where_it_is_gone() -> None:
    servers = [ScriptedServer(), ScriptedServer(), ScriptedServer()]

    async def ask_all(engine: OpenAIEngine) -> None:
        prompts = [prompt(doc_id, text=f"{doc_id} {stage}") for doc_id in range(30) for stage in ("short", "think")]
        answers = await asyncio.gather(*(engine.generate(one, SAMPLING) for one in prompts))
        assert len(answers) == 60
        homes = [{int(_text(body).split()[0]) for body in server.seen} for server in servers]
        assert all(len(home) >= 4 for home in homes) and sum(map(len, homes)) == 30
        servers[0].faults.extend(["drop"] * 1000)
        assert all(
            isinstance(one, Call) for one in await asyncio.gather(*(engine.generate(p, SAMPLING) for p in prompts))
        )
        assert servers[1].answered + servers[2].answered == 120 - 2 * len(homes[0])

    with_servers(servers, ask_all)


def _text(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"][-1]["text"])


def test_no_more_requests_are_open_than_allowed() -> None:
    server = ScriptedServer(seconds=0.05)

    async def ask_all(engine: OpenAIEngine) -> None:
        await asyncio.gather(*(engine.generate(prompt(i), SAMPLING) for i in range(20)))

    with_servers([server], ask_all, concurrency=3)
    assert server.most_open == 3 and server.answered == 20


def test_a_call_that_is_cancelled_gives_its_place_back() -> None:
    server = ScriptedServer()
    server.faults.append("hang")

    async def cancel(engine: OpenAIEngine) -> Any:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.generate(prompt(), SAMPLING), 0.2)
        return await ask(engine)

    assert isinstance(with_servers([server], cancel, concurrency=1), Call)


def test_a_picture_is_sent_whole_encoded_once_and_shrunk_where_told() -> None:
    server, image = ScriptedServer(), picture((400, 300))

    async def ask_twice(engine: OpenAIEngine) -> None:
        await asyncio.gather(*(engine.generate(prompt(0, image), SAMPLING) for _ in range(2)))

    with_servers([server], ask_twice)
    with_servers([server], ask_twice, max_pixels=30_000)
    urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in server.seen]
    assert urls[0] == urls[1] and urls[2] == urls[3] and len(_ENCODINGS[image]) == 2
    sent = [PIL.Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) for url in (urls[0], urls[2])]
    assert sent[0].tobytes() == image.pixels.tobytes() and sent[1].size == (200, 150)
    assert server.seen[0]["messages"][0]["content"][1] == {"type": "text", "text": "What is it? Answer."}


def test_sampling_reaches_the_server_and_defaults_of_other_servers_are_not_sent() -> None:
    server = ScriptedServer()

    async def ask_both(engine: OpenAIEngine) -> None:
        await engine.generate(prompt(), SAMPLING)
        await engine.generate(prompt(), Sampling(9, 0.7, 0.9, 20, 1.1, 3, True))

    with_servers([server], ask_both)
    first, second = [{k: v for k, v in body.items() if k not in ("messages", "model")} for body in server.seen]
    assert first == {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0}
    assert second == {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1,
                      "seed": 3, "ignore_eos": True}  # fmt: skip


# --- what cannot be -----------------------------------------------------------------------------------------


def refusal(server: ScriptedServer, **arguments: Any) -> str:
    with pytest.raises(EngineStartError) as error:
        with_servers([server], ask, **arguments)
    return str(error.value)


def test_a_server_that_is_not_there_is_refused_within_the_window() -> None:
    engine = engine_of("http://127.0.0.1:9/v1", retry_for=1)
    with pytest.raises(
        EngineStartError, match=r"small=http://127.0.0.1:9/v1 did not answer for 1 s \(Connection error"
    ):
        asyncio.run(engine.start())


def test_a_server_that_hangs_is_refused_within_the_window() -> None:
    assert "did not answer for 0.5 s (Request timed out" in refusal(ScriptedServer(silent=True), request_timeout=0.5)


def test_a_wrong_key_is_refused_and_printed_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer(key="sk-right")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "OPENAI_API_KEY is not set" in refusal(server)
    monkeypatch.setenv("MINE", "sk-wrong-one")
    text = refusal(server, api_key_env="MINE")
    assert "refuses the key in MINE" in text and "sk-wrong-one" not in text and "<key>" in text
    monkeypatch.setenv("MINE", "sk-right")
    assert isinstance(with_servers([server], ask, api_key_env="MINE"), Call)
    monkeypatch.setenv("MINE", "sk-right\n")  # as `$(cat file)` and mounted secrets have it
    assert isinstance(with_servers([server], ask, api_key_env="MINE"), Call)
    monkeypatch.setenv("MINE", "sk-ri\x07ght")
    with pytest.raises(ArgumentError, match="holds characters that no key has") as error:
        engine_of("http://host/v1", api_key_env="MINE")
    assert "sk-ri" not in str(error.value)


def test_a_wrong_model_is_refused_with_those_that_are_served() -> None:
    server = ScriptedServer(models=("a", "b"))
    assert "serves a, b, not c: give small_model=NAME" in refusal(server, model="c")
    assert "serves a, b, and which one is meant is not said" in refusal(server)
    assert isinstance(with_servers([server], ask, model="b"), Call) and server.seen[0]["model"] == "b"


def test_a_server_that_lists_nothing_needs_the_models_name() -> None:
    server = ScriptedServer(listing=False)
    assert "does not say which models it has" in refusal(server)
    assert isinstance(with_servers([server], ask, model="scripted"), Call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"small": "http://user:pw@host/v1"}, "a user name, a password or a query"),
        ({"small": "http:///v1"}, "is not the address"),
        ({"small": "http://host:99999/v1"}, "is not the address"),
        ({"small": "HTTP://host:port/v1"}, "is not the address"),
        ({"small": "http://user:pw@host/v1", "small_engine": "vllm"}, "is an address of an endpoint"),
        ({"small": "http://host/v1", "small_concurrency": 2.5}, "concurrency=2.5"),
        ({"small": "http://host/v1", "small_api_key_env": "NOT_THERE"}, "no environment variable NOT_THERE"),
        ({"small": "http://host/v1", "small_retry_for": -1}, "retry_for=-1"),
        ({"small": "http://host/v1", "small_api_key": "sk-1"}, "Unknown model argument 'api_key'"),
        ({"small": "http://host/v1", "small_engine": "vllm"}, "is an address of an endpoint, and small_engine=vllm"),
        ({"small": "a/path", "engine": "openai"}, "is not the address of an endpoint"),
        ({"engine": "openai"}, "has no default model: give small=http://HOST:PORT/v1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        config = parse({"mode": "small", **arguments})
        build(config.small).validate()
    assert words in str(error.value) and "pw@" not in str(error.value) and "sk-1" not in str(error.value)


def test_each_side_may_be_of_another_kind() -> None:
    given = {"pair": "demo", "large": "[http://a:1/v1,http://b:2/v1]", "small_max_model_len": 2048}
    config = parse(given)
    assert (config.small.engine, config.large.engine) == ("vllm", "openai")
    assert config.small.arguments == {"max_model_len": 2048} and config.large.arguments == {}
    assert isinstance(build(config.large), OpenAIEngine)


def test_an_engine_that_is_not_running_says_so() -> None:
    with pytest.raises(MaiError, match="is not running"):
        asyncio.run(engine_of("http://host/v1").generate(prompt(), SAMPLING))
