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
from lmms_eval_mai.engines.openai.chat import data_url
from lmms_eval_mai.engines.openai.client import Client, ConnectionFailed, StatusError
from lmms_eval_mai.engines.openai.endpoints import EndpointPool
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.options import OpenAIOptions
from lmms_eval_mai.errors import CallTimeout, EndpointBusy, EngineCrashed, EngineStartError, PromptTooLong, SampleError


@pytest.mark.slow  # each waits a second before its second attempt
@pytest.mark.parametrize("fault", [(429, {}), (500, {}), (503, {}), (408, {}), "drop"])
def test_a_transient_error_is_retried(fault: Any) -> None:
    server = ScriptedServer()
    server.faults.extend([fault, fault])
    result = with_servers([server], call)
    assert isinstance(result, Call) and (result.text, result.finish_reason) == ("[[Yes]]", "stop")
    assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (50, 32, 5)
    assert len(server.seen) == 3 and server.answered == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_fails_its_sample_without_a_retry(status: int) -> None:
    server = ScriptedServer()

    async def call_twice(engine: OpenAIEngine) -> Any:
        assert isinstance(await call(engine), Call)
        server.faults.append((status, {}))
        return await call(engine)

    error = with_servers([server], call_twice)
    assert type(error) is SampleError and f"a fault with status {status}" in str(error)
    assert "t document 0, small short" in str(error) and len(server.seen) == 2


@pytest.mark.slow
def test_a_retry_waits_as_long_as_the_server_asks() -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": "2"}))

    async def timed(engine: OpenAIEngine) -> float:
        began = time.monotonic()
        assert isinstance(await call(engine), Call)
        return time.monotonic() - began

    assert with_servers([server], timed) >= 2


def test_a_retry_after_header_longer_than_retry_for_fails_the_sample_at_once() -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": "3600"}))
    error = with_servers([server], call)
    assert isinstance(error, EndpointBusy) and error.retry_after_s == 3600
    assert "small_retry_for=5 s allows no further retry" in str(error)


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


def test_an_aborted_answer_is_an_error() -> None:
    server = ScriptedServer()
    server.faults.append("abort")
    error = with_servers([server], call)
    assert isinstance(error, SampleError) and "ended the answer with 'abort'" in str(error)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "refused to answer (I will not.)."),
        (
            {"role": "assistant", "content": None, "reasoning_content": "Let me see."},
            "has no text. If the server uses a reasoning parser, serve the model without it.",
        ),
    ],
)
def test_an_answer_without_text_is_an_error(message: dict[str, Any], words: str) -> None:
    error = with_servers([ScriptedServer(message=message)], call)
    assert isinstance(error, SampleError) and words in str(error)


@pytest.mark.slow
def test_a_connection_error_fails_only_that_sample_if_other_requests_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", max)  # with short pauses, the call may end before another one is answered
    server = ScriptedServer(unanswerable="poison", seconds=0.01)

    async def call_all(engine: OpenAIEngine) -> tuple[Any, list[Any]]:
        bad = asyncio.ensure_future(asyncio.gather(engine.generate(prompt(0, text="poison"), SAMPLING),
                                                   return_exceptions=True))  # fmt: skip
        good = []
        while not bad.done():
            good.append(await engine.generate(prompt(1), SAMPLING))
            await asyncio.sleep(0.05)
        return (await bad)[0], good

    error, good = with_servers([server], call_all, retry_for=3)
    assert isinstance(
        error, SampleError
    ) and "did not answer this request within 3 s (small_retry_for), but it answered other requests" in str(error)
    assert good


def test_a_server_that_reports_its_context_gets_all_sampling_arguments_and_no_max_tokens_above_its_context() -> None:
    server = ScriptedServer(context=1000)

    async def call_with_long_limit(engine: OpenAIEngine) -> None:
        await engine.generate(prompt(), Sampling(max_tokens=4096))

    with_servers([server], call_with_long_limit)
    neither = ("messages", "model", "logprobs")
    assert {name: value for name, value in server.seen[0].items() if name not in neither} == {
        "max_tokens": 1000, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip


def test_half_a_surrogate_pair_in_an_answer_is_replaced_because_lmms_eval_could_not_write_it() -> None:
    answer = with_servers([ScriptedServer(text="[[Yes]] \ud83d")], lambda engine: engine.generate(prompt(), SAMPLING))
    assert answer.text == "[[Yes]] \ufffd"


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
        answers = await asyncio.gather(*(engine.generate(one, SAMPLING) for one in prompts))
        assert len(answers) == 60
        homes = [{int(_text(body).split()[0]) for body in server.seen} for server in servers]
        assert all(len(home) >= 4 for home in homes) and sum(map(len, homes)) == 30
        servers[0].faults.extend(["drop"] * 1000)
        assert all(
            isinstance(one, Call) for one in await asyncio.gather(*(engine.generate(p, SAMPLING) for p in prompts))
        )
        assert servers[1].answered + servers[2].answered == 120 - 2 * len(homes[0])

    with_servers(servers, call_all)


def _text(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"][-1]["text"])


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


def sent_images(server: ScriptedServer, image: Image, **options: Any) -> list[str]:
    """Send an image twice at the same time. Returns the URLs of the image in the requests."""

    async def call_twice(engine: OpenAIEngine) -> None:
        await asyncio.gather(*(engine.generate(prompt(0, image), SAMPLING) for _ in range(2)))

    before = len(server.seen)
    with_servers([server], call_twice, **options)
    return [body["messages"][0]["content"][0]["image_url"]["url"] for body in server.seen[before:]]


def decoded(url: str) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))


@pytest.mark.parametrize("size", [(1, 1), (5, 1), (1, 4), (400, 300)])
def test_an_image_is_sent_without_loss(size: tuple[int, int]) -> None:
    server, image = ScriptedServer(), noise_image(size)
    first, second = sent_images(server, image)
    assert first == second and first.startswith("data:image/png;base64,")
    assert decoded(first).tobytes() == image.pixels.tobytes()
    assert server.seen[0]["messages"][0]["content"][1] == {"type": "text", "text": "What is it? Answer."}


def test_an_image_is_resized_to_max_pixels() -> None:
    server, image = ScriptedServer(), noise_image((400, 300))
    whole, _ = sent_images(server, image)
    smaller, _ = sent_images(server, image, max_pixels=30_000)
    assert decoded(whole).size == (400, 300) and decoded(smaller).size == (200, 150)


def test_an_image_is_encoded_once_for_each_size() -> None:
    async def encode(image: Image) -> list[str]:
        return await asyncio.gather(*(data_url(image, pixels) for pixels in (None, 30_000, None, 30_000)))

    first, smaller, again, smaller_again = asyncio.run(encode(noise_image((400, 300))))
    assert first is again and smaller is smaller_again and first != smaller


def test_sampling_reaches_the_server_and_neutral_values_are_not_sent() -> None:
    server = ScriptedServer()

    async def call_with_both(engine: OpenAIEngine) -> None:
        await engine.generate(prompt(), SAMPLING)
        await engine.generate(prompt(), Sampling(9, 0.7, 0.9, 20, 1.1, 3, True, 0.1, 1.5, 0.5, ("[[", "]]")))

    with_servers([server], call_with_both)
    first, second = [
        {k: v for k, v in body.items() if k not in ("messages", "model", "logprobs")} for body in server.seen
    ]
    assert first == {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0}
    assert second == {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1,
                      "seed": 3, "ignore_eos": True, "min_p": 0.1, "presence_penalty": 1.5, "frequency_penalty": 0.5,
                      "stop": ["[[", "]]"]}  # fmt: skip


def tokens(*entries: tuple[str, float, list[int] | None]) -> Any:
    return [{"token": token, "logprob": value, "bytes": data} for token, value, data in entries]


YES = tokens(("[[", -0.1, None), ("Yes", -0.5, None), ("]]", -0.2, None), ("<|im_end|>", -0.3, None))


def test_a_call_has_the_log_probabilities_of_its_tokens_and_the_end_token_has_no_text() -> None:
    answer = with_servers([ScriptedServer(logprobs=YES)], call)
    assert answer.logprobs == TokenLogprobs(("[[", "Yes", "]]", ""), (-0.1, -0.5, -0.2, -0.3))


def test_the_parts_of_a_character_are_joined_by_their_bytes() -> None:
    euro = list("€".encode())
    parts = tokens(("\\xe2\\x82", -1.0, euro[:2]), ("\\xac", -2.0, euro[2:]), (" 5", -3.0, [32, 53]))
    answer = with_servers([ScriptedServer(text="€ 5", logprobs=parts)], call)
    assert answer.logprobs == TokenLogprobs(("", "€", " 5"), (-1.0, -2.0, -3.0))


@pytest.mark.parametrize("reported", ["ignore", [], [{"token": "a"}], [None]])
def test_a_reply_without_readable_log_probabilities_is_an_answer_without_them(reported: Any) -> None:
    answer = with_servers([ScriptedServer(logprobs=reported)], call)
    assert isinstance(answer, Call) and answer.text == "[[Yes]]" and answer.logprobs is None


def test_an_endpoint_that_refuses_log_probabilities_is_asked_for_them_once() -> None:
    async def call_thrice(engine: OpenAIEngine) -> list[Any]:
        return [await call(engine) for _ in range(3)]

    server = ScriptedServer(logprobs="refuse")
    answers = with_servers([server], call_thrice)
    assert [(answer.text, answer.logprobs) for answer in answers] == [("[[Yes]]", None)] * 3
    assert [body.get("logprobs") for body in server.seen] == [True, None, None, None]


def test_calls_at_once_lose_no_answer_if_the_endpoint_refuses_log_probabilities() -> None:
    """The refusal of one call may arrive after the answer to another one that was asked again without."""

    async def call_at_once(engine: OpenAIEngine) -> list[Any]:
        return await asyncio.gather(*(engine.generate(prompt(number), SAMPLING) for number in range(20)))

    server = ScriptedServer(logprobs="refuse", seconds=0.01)
    answers = with_servers([server], call_at_once, concurrency=20)
    assert [answer.text for answer in answers] == ["[[Yes]]"] * 20


def test_late_refusal_of_log_probabilities_is_not_an_error() -> None:
    async def late() -> Any:
        client = Client("http://127.0.0.1:9/v1", "", 5.0)
        asked = asyncio.Event()

        async def post(url: str, body: dict[str, Any]) -> Any:
            if body.get("logprobs") and body["n"] == 2:
                await asked.wait()
            if body.get("logprobs"):
                raise StatusError(400, "logprobs are not supported", "", "")
            asked.set()
            return body["n"]

        client._post = post  # type: ignore[method-assign]
        try:
            return await asyncio.gather(client.chat({"n": 2}), client.chat({"n": 1}))
        finally:
            await client.close()

    assert asyncio.run(late()) == [2, 1]


def test_each_endpoint_of_a_model_is_asked_for_log_probabilities() -> None:
    servers = [ScriptedServer(logprobs="refuse"), ScriptedServer(logprobs=YES)]

    async def call_all(engine: OpenAIEngine) -> list[Call]:
        return [await engine.generate(prompt(doc_id), SAMPLING) for doc_id in range(8)]

    answers = with_servers(servers, call_all)
    assert {answer.logprobs is None for answer in answers} == {True, False}


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


@pytest.mark.parametrize("header", ["soon", "inf", "nan", "-5", "Wed, 21 Oct 2015 07:28:00 GMT", ""])
def test_a_retry_after_header_without_a_time_to_wait_is_ignored(header: str) -> None:
    server = ScriptedServer()
    server.faults.append((429, {"Retry-After": header}))
    error = with_servers([server], call, retry_for=0)
    assert isinstance(error, EndpointBusy) and error.retry_after_s == 0


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_temporary_error_that_remains_is_a_busy_endpoint(status: int) -> None:
    server = ScriptedServer()
    server.faults.append((status, {"Retry-After": "7"}))
    error = with_servers([server], call, retry_for=0)
    assert isinstance(error, EndpointBusy) and error.retry_after_s == 7
    assert f"a fault with status {status}" in str(error)
