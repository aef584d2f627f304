"""The openai engine on servers that fail in many ways: real HTTP servers on loopback, without a model, and one of vLLM
that is killed while samples run."""

import asyncio
import base64
import io
import json
import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from support.endpoints import (
    SAMPLING,
    ScriptedServer,
    call,
    engine_of,
    noise_image,
    prompt,
    running,
    until,
    with_servers,
)
from support.samples import sample
from support.servers import Server

from lmms_eval_mai.contract import Call, CallKey, Message, Reply, Sampling, TokenLogprobs
from lmms_eval_mai.engines.openai.chat import to_reply
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.restart import RestartedEngine
from lmms_eval_mai.errors import (
    CallTimeout,
    EndpointBusy,
    EndpointRefused,
    EngineCrashed,
    EngineStartError,
    SampleError,
)
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.methods import SMALL
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Settings, Trace
from lmms_eval_mai.run.scheduler import run_samples
from lmms_eval_mai.run.store import Store


def error_of(code: Any) -> dict[str, Any]:
    return {"error": {"message": "a fault", "code": code}}


@pytest.mark.parametrize(
    "fault",
    [(503, {}), "drop", error_of("503"), {"error": None, "choices": [{"finish_reason": "error", **error_of(502)}]}],
)
def test_a_temporary_error_is_retried(fault: Any) -> None:
    faults = deque([fault])
    servers = [ScriptedServer(faults=faults), ScriptedServer(faults=faults)]  # no pause before the other server
    result = with_servers(servers, call)
    assert isinstance(result, Reply) and (result.text, result.finish_reason) == ("[[Yes]]", "stop")
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (50, 32, 5)
    assert [(len(server.seen), server.answered) for server in servers] in ([(1, 0), (1, 1)], [(1, 1), (1, 0)])


@pytest.mark.parametrize(
    ("fault", "arguments", "error_type"),
    [
        *(((status, {}), {}, SampleError) for status in (400, 413)),
        *(((status, {}), {}, EndpointRefused) for status in (401, 402)),
        pytest.param("hang", {"request_timeout": 1.5}, CallTimeout, marks=pytest.mark.slow),
        ("abort", {}, SampleError),
        ({"error": {"type": "insufficient_quota", "code": 429}}, {}, EndpointRefused),
        ("drop", {"retry_for": 0}, EngineCrashed),
    ],
)
def test_a_request_that_cannot_succeed_is_made_once_and_its_error_tells_whether_only_the_sample_fails(
    fault: Any, arguments: dict[str, Any], error_type: type[Exception]
) -> None:
    server = ScriptedServer(faults=deque([fault]))
    error = with_servers([server], call, **arguments)
    assert type(error) is error_type and len(server.seen) == 1
    assert ("MiB" in str(error)) == (fault == (413, {}))  # its request is too large


@pytest.mark.parametrize(
    ("status", "retry_after", "retry_for", "seconds"),
    [
        *((status, "7", 0, 7) for status in (429, 500)),
        *((429, header, 0, 0) for header in ("soon", "nan", "Wed, 21 Oct 2015 07:28:00 GMT")),
        (429, "3600", 5, 3600),  # longer than retry_for allows, so it fails at once
        (429, "Fri, 01 Jan 2100 00:00:00 GMT", 5, pytest.approx(4102444800 - time.time())),  # by at most 2,300 s
    ],
)
def test_a_temporary_error_that_remains_is_a_busy_endpoint_with_the_seconds_that_it_asks_to_wait(
    status: int, retry_after: str, retry_for: float, seconds: float
) -> None:
    server = ScriptedServer(faults=deque([(status, {"Retry-After": retry_after})]))
    error = with_servers([server], call, retry_for=retry_for)
    assert isinstance(error, EndpointBusy) and error.retry_after_s == seconds


def test_all_calls_of_a_sample_use_one_endpoint_and_another_one_if_it_does_not_answer() -> None:
    servers = [ScriptedServer(), ScriptedServer(), ScriptedServer()]

    async def call_all(engine: OpenAIEngine) -> None:
        prompts = [prompt(doc_id, text=f"{doc_id} {name}") for doc_id in range(30) for name in ("simple", "think")]
        await asyncio.gather(*(engine.generate(each, SAMPLING) for each in prompts))
        texts = [[body["messages"][0]["content"][-1]["text"] for body in server.seen] for server in servers]
        homes = [{int(text.split()[0]) for text in seen} for seen in texts]
        assert all(len(home) >= 4 for home in homes) and sum(map(len, homes)) == 30
        servers[0].faults.extend(["drop"] * 1000)
        await asyncio.gather(*(engine.generate(each, SAMPLING) for each in prompts))
        assert servers[1].answered + servers[2].answered == 120 - 2 * len(homes[0])

    with_servers(servers, call_all)


def test_concurrency_limits_the_open_requests() -> None:
    server = ScriptedServer(seconds=0.02)

    async def call_all(engine: OpenAIEngine) -> None:
        await asyncio.gather(*(call(engine) for _ in range(20)))

    with_servers([server], call_all, concurrency=3)
    assert server.most_open == 3 and server.answered == 20


def test_a_server_that_starts_later_is_waited_for() -> None:
    async def run() -> None:
        async with running(ScriptedServer()) as url:
            port = int(url.split(":")[2].removesuffix("/v1"))
        engine = engine_of(url, retry_for=60)
        starting = asyncio.ensure_future(engine.start())
        await asyncio.sleep(0.2)
        assert not starting.done()
        async with running(ScriptedServer(), port):
            await starting
            await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("servers", "arguments", "words"),
    [
        ([ScriptedServer(models=("a", "b"))], {}, ["a, b", "small_model"]),
        ([ScriptedServer(models=())], {}, ["no model"]),
        ([ScriptedServer(lists_models=False)], {}, ["small_model"]),
        ([ScriptedServer(models=("a",)), ScriptedServer(models=("b",))], {}, ["'a'", "'b'"]),
        ([ScriptedServer(key="sk-right")], {"api_key_env": "MINE"}, ["status 401", "<key>", "MINE"]),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_at_the_start(
    servers: list[ScriptedServer], arguments: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "sk-wrong-one")
    with pytest.raises(EngineStartError) as error:
        with_servers(servers, call, **arguments)
    assert all(word in str(error.value) for word in words) and "sk-wrong" not in str(error.value)


def test_a_key_and_the_name_of_a_model_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "sk-right\n")  # as in mounted secrets
    server = ScriptedServer(models=("a", "b"), key="sk-right")
    assert isinstance(with_servers([server], call, api_key_env="MINE", model="b"), Reply)
    assert server.seen[0]["model"] == "b"
    assert isinstance(with_servers([ScriptedServer(lists_models=False)], call, model="scripted"), Reply)


def test_the_identity_is_that_of_the_served_model_and_of_the_arguments_that_change_an_answer() -> None:
    async def identity(engine: OpenAIEngine) -> str:
        return engine.identity()

    first, moved = (with_servers([ScriptedServer()], identity, retry_for=seconds) for seconds in (1, 2))
    others = [with_servers([server], identity) for server in (ScriptedServer(("other",)), ScriptedServer(context=1000))]
    assert first == moved and len({first, *others}) == 3


NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
           "seed": None, "ignore_eos": False, "stop": []}  # fmt: skip


@pytest.mark.parametrize(
    ("context", "sampling", "expected"),
    [
        (None, SAMPLING, {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0}),
        (
            None,
            Sampling(9, 0.7, 0.9, 20, 1.1, 3, True, 0.1, 1.5, 0.5, ("[[", "]]")),
            {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 3,
             "ignore_eos": True, "min_p": 0.1, "presence_penalty": 1.5, "frequency_penalty": 0.5, "stop": ["[[", "]]"]},
        ),
        (1000, Sampling(max_tokens=4096), {"max_tokens": 1000, "temperature": 0.0, "top_p": 1.0, **NEUTRAL,
                                          "chat_template_kwargs": {"enable_thinking": False}}),
    ],
)  # fmt: skip
def test_sampling_reaches_the_server(context: int | None, sampling: Sampling, expected: dict[str, Any]) -> None:
    server = ScriptedServer(context=context)
    with_servers([server], lambda engine: engine.generate(prompt(), sampling))
    assert {name: value for name, value in server.seen[0].items() if name not in ("messages", "model")} == expected


def test_an_image_is_sent_without_loss_and_encoded_once() -> None:
    server, image = ScriptedServer(), noise_image((400, 300))
    pixels = image.pixels.tobytes()

    async def call_twice(engine: OpenAIEngine) -> None:
        await call(engine, image=image)
        image.pixels.close()  # an image that is encoded again would fail
        await call(engine, image=image)

    with_servers([server], call_twice)
    shown, text = server.seen[1]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it? Answer."}
    start, sent = shown["image_url"]["url"].split(",")
    assert start == "data:image/png;base64"
    assert PIL.Image.open(io.BytesIO(base64.b64decode(sent))).tobytes() == pixels


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}


def choice(finish_reason: str = "stop", logprobs: Any = None, **message: Any) -> dict[str, Any]:
    only = {"finish_reason": finish_reason, "message": message, "logprobs": logprobs}
    return {"choices": [only], "usage": USAGE}


@pytest.mark.parametrize(
    ("field", "reply"),
    [
        ("reply", "<html>Welcome</html>"),
        ("finish_reason", {"error": {"message": "overloaded"}}),
        ("finish_reason", choice("tool_calls", content="[[Yes]]")),
        ("prompt_tokens", {**choice(content="[[Yes]]"), "usage": {**USAGE, "prompt_tokens": -1}}),
        ("message.content", choice(content=5)),
        *(
            ("logprob", choice(content="x", logprobs={"content": [{"token": "x", "logprob": value}]}))
            for value in (math.nan, 0.5)
        ),
        *(("content", choice(reason, content=text)) for reason, text in (("stop", " \n"), ("length", None))),
        ("content", choice(content="", reasoning="[[Yes]]")),
    ],
)
def test_an_invalid_field_of_a_reply_is_named_in_the_error_of_its_sample(field: str, reply: Any) -> None:
    with pytest.raises(SampleError, match=f"t document 0, small simple: .*{field}.* "):
        to_reply(prompt(), json.dumps(reply), 1.0)


THOUGHT = "<think>\nI look.\n</think>\n\n[[Yes]]"
PARTS = [{"type": "thinking", "thinking": [{"text": "I look."}]}, {"type": "text", "text": "[[Yes]]"}]


@pytest.mark.parametrize(
    ("finish_reason", "message", "text", "native"),
    [
        ("stop", {"content": "[[Yes]]", "reasoning": None}, "[[Yes]]", (None, "[[Yes]]")),
        ("stop", {"content": "\n\n[[Yes]]", "reasoning": "\nI look.\n"}, THOUGHT, ("I look.", "[[Yes]]")),
        ("stop", {"content": "I look.</think>[[Yes]]"}, "I look.</think>[[Yes]]", ("I look.", "[[Yes]]")),
        ("stop", {"content": None, "reasoning": "I look."}, None, ("I look.", "")),
        ("length", {"content": None, "reasoning_content": "Is it"}, "<think>\nIs it", ("Is it", "")),
        ("length", {"content": "I look"}, "I look", ("I look", "")),
        ("stop", {"content": PARTS}, THOUGHT, ("I look.", "[[Yes]]")),
        ("stop", {"content": "half of a pair: \ud83d"}, "half of a pair: \ufffd", (None, "half of a pair: \ufffd")),
    ],
)
def test_the_text_of_a_reply_is_its_thinking_in_tags_and_then_its_content_and_that_of_a_native_call_its_content(
    finish_reason: str, message: dict[str, Any], text: str | None, native: tuple[str | None, str]
) -> None:
    """The messages are those of vLLM's server with a reasoning parser and without one, of DeepSeek and of Mistral."""
    reply = json.dumps(choice(finish_reason, **message))
    call = to_reply(replace(prompt(), key=CallKey("t", 0, 0, "small", "native")), reply, 1.0)
    assert (call.thinking, call.text) == native
    if text is not None:  # a thinking alone is no complete answer
        assert to_reply(prompt(), reply, 1.0).text == text


def test_log_probabilities_are_asked_for_only_by_their_prompt_and_refused_once_by_each_endpoint() -> None:
    """The refusal of one call may arrive after the answer to another one that was asked again without."""
    yes = [{"token": text, "logprob": value} for text, value in (("[[", -0.1), ("Yes", -0.5), ("]]", 1e-9))]
    servers = [ScriptedServer(logprobs="refuse", seconds=0.01), ScriptedServer(logprobs=yes)]

    async def call_all(engine: OpenAIEngine) -> list[Reply]:
        calls = [await asyncio.gather(*(call(engine, doc_id=i, logprobs=wants) for i in range(12)))
                 for wants in (True, True, False)]  # fmt: skip
        return [*calls[1], *calls[2]]

    found = with_servers(servers, call_all)
    assert [answer.text for answer in found] == ["[[Yes]]"] * 24
    wanted = TokenLogprobs(("[[", "Yes", "]]"), (-0.1, -0.5, 0.0))
    assert {answer.logprobs for answer in found[:12]} == {None, wanted}
    assert {answer.logprobs for answer in found[12:]} == {None}
    asked = [sum(body.get("logprobs", False) for body in server.seen) for server in servers]
    assert 0 < asked[0] <= len(servers[0].seen) // 4 and asked[1] == 2 * len(servers[1].seen) // 3


SAMPLES = 80


@pytest.fixture
def server(tiny_pair: tuple[Path, Path], tmp_path: Path) -> Iterator[Server]:
    server = Server(tiny_pair[0], tmp_path / "log")
    server.start()
    server.wait()
    yield server
    server.kill()


def question(number: int) -> Sample:
    opened = sample(doc_id=number)
    (message,) = opened.question
    words = f"Is number {number} in the image?\n"
    return replace(opened, question=(Message("user", (message.content[0], words)),))


@pytest.mark.long
def test_a_server_that_is_killed_and_restarted_loses_no_call_and_repeats_none(server: Server, tmp_path: Path) -> None:
    async def run(name: str, is_killed: bool) -> tuple[list[str], Counter[int]]:
        texts, finished = [""] * SAMPLES, Counter[int]()

        def count(key: CallKey, outcome: Any) -> None:
            finished[key.doc_id] += isinstance(outcome, Call)

        async def report(number: int, trace: Any) -> bool:
            assert isinstance(trace, Trace), trace
            texts[number] = trace.answer.text
            return True

        engine = RestartedEngine(engine_of(server.url, retry_for=600), restarts=None)
        await engine.start()
        store = Store(tmp_path / name)
        store.models = {"small": engine.engine.identity()}
        pair = Pair({"small": engine}, Settings(SMALL), store=store, on_call=count)
        answering = run_samples(range(SAMPLES), question, lambda each: run_sample(each, pair), report, max_open=8)
        running = asyncio.ensure_future(answering)
        if is_killed:
            await until(lambda: finished.total() >= 20 or running.done())
            server.kill()
            server.start()
        await running
        await engine.close()
        return texts, finished

    expected, _ = asyncio.run(run("undisturbed", False))
    texts, finished = asyncio.run(run("killed", True))
    assert texts == expected and len(set(texts)) > 1 and set(finished.values()) == {1} and len(finished) == SAMPLES


def test_an_error_names_the_variable_of_a_bad_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "me:pw@127.0.0.1:9")
    monkeypatch.delenv("http_proxy", raising=False)
    with pytest.raises(EngineStartError, match="HTTP_PROXY") as error:
        asyncio.run(engine_of("http://model.example/v1", retry_for=0).start())
    assert "pw" not in str(error.value)
