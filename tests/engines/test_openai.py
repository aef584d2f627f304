"""Calls of the openai engine to servers that fail in many ways: real HTTP servers on loopback, without a model."""

import asyncio
import base64
import io
import random
import time
from typing import Any

import PIL.Image
import pytest
from scripted_server import ScriptedServer
from support.endpoints import SAMPLING, call, noise_image, prompt, with_servers

from lmms_eval_mai.contract import Call, Image, Sampling, TokenLogprobs
from lmms_eval_mai.engines.openai.chat import data_url, to_call
from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed
from lmms_eval_mai.engines.openai.endpoints import EndpointPool
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.errors import (
    CallTimeout,
    EndpointBusy,
    EndpointRefused,
    EngineCrashed,
    EngineStartError,
    PromptTooLong,
    SampleError,
)


@pytest.mark.slow  # each waits a second before its second attempt
@pytest.mark.parametrize("fault", [(429, {}), (500, {}), (503, {}), (408, {}), "drop"])
def test_a_transient_error_is_retried(fault: Any) -> None:
    server = ScriptedServer()
    server.faults.extend([fault, fault])
    result = with_servers([server], call)
    assert isinstance(result, Call) and (result.text, result.finish_reason) == ("[[Yes]]", "stop")
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (50, 32, 5)
    assert len(server.seen) == 3 and server.answered == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, SampleError) for status in (400, 413, 422)),
        *((status, EndpointRefused) for status in (401, 403, 404)),
    ],
)
def test_a_refused_request_is_not_retried_and_fails_its_sample_or_says_that_the_key_or_the_model_was_refused(
    status: int, kind: type[Exception]
) -> None:
    server = ScriptedServer()

    async def call_twice(engine: OpenAIEngine) -> Any:
        assert isinstance(await call(engine), Call)
        server.faults.append((status, {}))
        return await call(engine)

    error = with_servers([server], call_twice)
    assert type(error) is kind and f"a fault with status {status}" in str(error) and len(server.seen) == 2
    assert kind is EndpointRefused or "t document 0, small short" in str(error)


@pytest.mark.slow
def test_a_retry_waits_as_long_as_the_server_asks() -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": "2"}))

    async def timed(engine: OpenAIEngine) -> float:
        began = time.monotonic()
        assert isinstance(await call(engine), Call)
        return time.monotonic() - began

    assert with_servers([server], timed) >= 2


def test_a_server_that_does_not_answer_is_a_crashed_engine_for_all_calls_in_flight() -> None:
    async def generate_all(engine: OpenAIEngine) -> list[Any]:
        server.faults.extend(["drop"] * 1000)
        return await asyncio.gather(*(engine.generate(prompt(i), SAMPLING) for i in range(8)), return_exceptions=True)

    server = ScriptedServer()
    errors = with_servers([server], generate_all, retry_for=1)
    assert all(isinstance(error, EngineCrashed) for error in errors), errors
    assert "did not answer within 1 s (small_retry_for)" in str(errors[0])


def test_a_request_that_times_out_fails_its_sample_without_a_retry() -> None:
    server = ScriptedServer()
    server.faults.append("hang")
    error = with_servers([server], call, request_timeout=0.5)
    assert isinstance(error, CallTimeout) and "within small_request_timeout=0.5 s" in str(error)
    assert len(server.seen) == 1


@pytest.mark.slow
def test_a_connection_error_fails_only_that_sample_if_other_requests_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", max)  # with short pauses, the call may end before another one is answered
    server = ScriptedServer(unanswerable="poison", seconds=0.01)

    async def call_all(engine: OpenAIEngine) -> tuple[Any, list[Any]]:
        bad = asyncio.ensure_future(engine.generate(prompt(0, text="poison"), SAMPLING))
        good = []
        while not bad.done():
            good.append(await engine.generate(prompt(1), SAMPLING))
            await asyncio.sleep(0.05)
        return bad.exception(), good

    error, good = with_servers([server], call_all, retry_for=3)
    assert isinstance(error, SampleError) and good
    assert "did not answer this request within 3 s (small_retry_for), but it answered other requests" in str(error)


def test_thinking_cannot_be_truncated_on_a_server_without_tokenize() -> None:
    async def truncate_thinking(engine: OpenAIEngine) -> Any:
        return await engine.truncate_thinking(prompt(0, text="Think: abc. Answer."), "abc", SAMPLING)

    with pytest.raises(PromptTooLong, match="has no /tokenize to truncate it"):
        with_servers([ScriptedServer(context=1000)], truncate_thinking)


def test_endpoints_that_serve_different_models_are_refused() -> None:
    with pytest.raises(EngineStartError, match="serve different ones"):
        with_servers([ScriptedServer(models=("a",)), ScriptedServer(models=("b",))], call)


def test_the_identity_depends_on_the_served_model_and_not_on_the_address() -> None:
    async def identity(engine: OpenAIEngine) -> Any:
        return engine.identity()

    first, moved = (with_servers([ScriptedServer(models=("a",))], identity) for _ in range(2))
    other = with_servers([ScriptedServer(models=("b",))], identity)
    assert first == moved and first["model"] == "a" and other["model"] == "b"


def test_all_calls_of_a_sample_use_one_endpoint_and_another_one_if_it_does_not_answer() -> None:
    servers = [ScriptedServer(), ScriptedServer(), ScriptedServer()]

    async def call_all(engine: OpenAIEngine) -> None:
        prompts = [prompt(doc_id, text=f"{doc_id} {stage}") for doc_id in range(30) for stage in ("short", "think")]
        await asyncio.gather(*(engine.generate(one, SAMPLING) for one in prompts))
        texts = [[body["messages"][0]["content"][-1]["text"] for body in server.seen] for server in servers]
        homes = [{int(text.split()[0]) for text in of_server} for of_server in texts]
        assert all(len(home) >= 4 for home in homes) and sum(map(len, homes)) == 30
        servers[0].faults.extend(["drop"] * 1000)
        await asyncio.gather(*(engine.generate(one, SAMPLING) for one in prompts))
        assert servers[1].answered + servers[2].answered == 120 - 2 * len(homes[0])

    with_servers(servers, call_all)


def test_concurrency_limits_the_open_requests() -> None:
    server = ScriptedServer(seconds=0.05)

    async def call_all(engine: OpenAIEngine) -> None:
        await asyncio.gather(*(engine.generate(prompt(i), SAMPLING) for i in range(20)))

    with_servers([server], call_all, concurrency=3)
    assert server.most_open == 3 and server.answered == 20


def test_a_cancelled_call_frees_its_slot() -> None:
    server = ScriptedServer()
    server.faults.append("hang")

    async def cancel(engine: OpenAIEngine) -> Any:
        hanging = asyncio.ensure_future(engine.generate(prompt(), SAMPLING))
        while server.faults:
            assert not hanging.done(), hanging
            await asyncio.sleep(0.01)
        hanging.cancel()
        await asyncio.wait([hanging])
        return await call(engine)

    assert isinstance(with_servers([server], cancel, concurrency=1), Call)


def tokens(*entries: tuple[str, float, list[int] | None]) -> Any:
    return [{"token": token, "logprob": value, "bytes": data} for token, value, data in entries]


def test_a_refusal_that_is_not_about_log_probabilities_is_reported_and_they_are_asked_for_again() -> None:
    server = ScriptedServer(logprobs=YES)
    server.faults.extend([(400, {}), (400, {})])

    async def call_twice(engine: OpenAIEngine) -> list[Any]:
        return [await call(engine), await call(engine)]

    error, answer = with_servers([server], call_twice)
    assert type(error) is SampleError and "a fault with status 400" in str(error)
    assert answer.logprobs is not None


def test_seconds_in_which_a_request_waits_for_other_requests_do_not_count_as_seconds_of_its_retries() -> None:
    options = OpenAIOptions(retry_for=0.2, concurrency=1)
    urls = [f"http://{name}/v1" for name in "abc"]

    async def send(client: Client) -> str:
        if client.url != urls[2]:
            raise ConnectionFailed("Connection error")
        return client.url

    async def hold_slot(client: Client) -> None:
        await asyncio.sleep(0.5)

    async def run() -> str:
        pool = EndpointPool("small", urls, options)
        other = asyncio.ensure_future(pool.request(pool.endpoints[1:], hold_slot))
        await asyncio.sleep(0)
        answer = await pool.request(pool.endpoints, send)
        await other
        await pool.close()
        return answer

    assert asyncio.run(run()) == urls[2]


@pytest.mark.parametrize(
    ("status", "retry_after", "retry_for", "seconds"),
    [
        *((status, "7", 0, 7) for status in (408, 429, 500, 503)),
        *((429, header, 0, 0) for header in ("soon", "inf", "nan", "-5", "Wed, 21 Oct 2015 07:28:00 GMT", "")),
        (429, "3600", 5, 3600),  # longer than retry_for allows, so it fails at once
    ],
)
def test_a_temporary_error_that_remains_is_a_busy_endpoint_with_the_seconds_that_it_asks_to_wait(
    status: int, retry_after: str, retry_for: float, seconds: float
) -> None:
    server = ScriptedServer()
    server.faults.append((status, {"Retry-After": retry_after}))
    error = with_servers([server], call, retry_for=retry_for)
    assert isinstance(error, EndpointBusy) and error.retry_after_s == seconds
    assert f"small_retry_for={retry_for} s allows no further retry (status {status}" in str(error)


# --- requests -------------------------------------------------------------------------------------------------------

NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


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
        (1000, Sampling(max_tokens=4096), {"max_tokens": 1000, "temperature": 0.0, "top_p": 1.0, **NEUTRAL}),
    ],
    ids=["neutral values are left out", "other values", "a server with a context gets all"],
)  # fmt: skip
def test_sampling_reaches_the_server(context: int | None, sampling: Sampling, expected: dict[str, Any]) -> None:
    server = ScriptedServer() if context is None else ScriptedServer(context=context)
    with_servers([server], lambda engine: engine.generate(prompt(), sampling))
    sent = {name: value for name, value in server.seen[0].items() if name not in ("messages", "model", "logprobs")}
    assert sent == expected


@pytest.mark.parametrize(
    ("size", "max_pixels", "sent_size"),
    [((1, 1), None, (1, 1)), ((5, 1), None, (5, 1)), ((400, 300), None, (400, 300)), ((400, 300), 30_000, (200, 150))],
)
def test_an_image_is_sent_without_loss_or_in_the_size_of_max_pixels(
    size: tuple[int, int], max_pixels: int | None, sent_size: tuple[int, int]
) -> None:
    server, image = ScriptedServer(), noise_image(size)
    options = {} if max_pixels is None else {"max_pixels": max_pixels}
    with_servers([server], lambda engine: engine.generate(prompt(0, image), SAMPLING), **options)
    shown, text = server.seen[0]["messages"][0]["content"]
    url = shown["image_url"]["url"]
    assert url.startswith("data:image/png;base64,") and text == {"type": "text", "text": "What is it? Answer."}
    pixels = PIL.Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))
    assert pixels.size == sent_size and (max_pixels or pixels.tobytes() == image.pixels.tobytes())


def test_an_image_is_encoded_once_for_each_size() -> None:
    async def encode(image: Image) -> list[str]:
        return await asyncio.gather(*(data_url(image, pixels) for pixels in (None, 30_000, None, 30_000)))

    first, smaller, again, smaller_again = asyncio.run(encode(noise_image((400, 300))))
    assert first is again and smaller is smaller_again and first != smaller


# --- replies --------------------------------------------------------------------------------------------------------


def choice(finish_reason: str = "stop", **message: Any) -> Any:
    return {"choices": [{"finish_reason": finish_reason, "message": message}], "usage": {**USAGE}}


USAGE = {"prompt_tokens": 5, "completion_tokens": 3}
NO_ANSWER = "the server returned no answer (the reply has no choices or no token counts)"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("<html>Welcome</html>", NO_ANSWER),
        (None, NO_ANSWER),
        ({"choices": [], "usage": USAGE}, NO_ANSWER),
        ({**choice(content="[[Yes]]"), "usage": None}, NO_ANSWER),
        ({"choices": [{"message": None}], "usage": {}}, NO_ANSWER),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        (choice("abort", content="[[Y"), "ended the answer with 'abort'"),
        (choice(content=None, refusal="I will not."), "refused to answer (I will not.)."),
        (choice(content=None, reasoning_content="Let me see."), "has no text. If the server uses a reasoning parser"),
    ],
)
def test_a_reply_without_a_complete_answer_is_an_error_of_its_sample(reply: Any, words: str) -> None:
    with pytest.raises(SampleError) as error:
        to_call(prompt(), reply, 1.0)
    assert words in str(error.value)


EURO = list("€".encode())
YES = tokens(("[[", -0.1, None), ("Yes", -0.5, None), ("]]", -0.2, None), ("<|im_end|>", -0.3, None))


@pytest.mark.parametrize(
    ("text", "reported", "expected"),
    [
        ("[[Yes]]", YES, TokenLogprobs(("[[", "Yes", "]]", ""), (-0.1, -0.5, -0.2, -0.3))),
        (  # the parts of a character are joined by their bytes
            "€ 5",
            tokens(("\\xe2\\x82", -1.0, EURO[:2]), ("\\xac", -2.0, EURO[2:]), (" 5", -3.0, [32, 53])),
            TokenLogprobs(("", "€", " 5"), (-1.0, -2.0, -3.0)),
        ),
        ("half a surrogate pair, which lmms-eval could not write: \ud83d", "ignore", None),
        *(("[[Yes]]", unreadable, None) for unreadable in ("ignore", [], [{"token": "a"}], [None])),
    ],
)
def test_a_call_has_the_log_probabilities_of_its_tokens_if_they_can_be_read(
    text: str, reported: Any, expected: TokenLogprobs | None
) -> None:
    answer = with_servers([ScriptedServer(text=text, logprobs=reported)], call)
    assert isinstance(answer, Call) and (answer.text, answer.logprobs) == (text.replace("\ud83d", "\ufffd"), expected)


def test_each_endpoint_that_refuses_log_probabilities_is_asked_for_them_once_and_no_answer_is_lost() -> None:
    """The refusal of one call may arrive after the answer to another one that was asked again without."""

    async def call_all(engine: OpenAIEngine) -> list[list[Any]]:
        rounds = [range(8), range(8, 16)]
        return [await asyncio.gather(*(engine.generate(prompt(i), SAMPLING) for i in numbers)) for numbers in rounds]

    servers = [ScriptedServer(logprobs="refuse", seconds=0.01), ScriptedServer(logprobs=YES)]
    first, second = with_servers(servers, call_all)
    assert [answer.text for answer in first + second] == ["[[Yes]]"] * 16
    assert {answer.logprobs is None for answer in second} == {True, False}
    asked = [body.get("logprobs") for body in servers[0].seen]
    later = sum(answer.logprobs is None for answer in second)
    assert asked[-later:] == [None] * later and True in asked
