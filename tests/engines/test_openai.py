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

from lmms_eval_mai.contract import Call, Image, Sampling
from lmms_eval_mai.engines.openai.engine import OpenAIEngine
from lmms_eval_mai.engines.openai.images import _ENCODINGS
from lmms_eval_mai.errors import CallTimeout, EngineCrashed, EngineStartError, PromptTooLong, SampleError


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
    server.faults.append((status, {}))
    error = with_servers([server], call)
    assert isinstance(error, SampleError) and f"a fault with status {status}" in str(error)
    assert "t document 0, small short" in str(error) and len(server.seen) == 1


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
    assert isinstance(error, SampleError) and "small_retry_for=5 s allows no further retry" in str(error)


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
    assert {name: value for name, value in server.seen[0].items() if name not in ("messages", "model")} == {
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


def test_an_image_is_sent_without_loss_and_encoded_once() -> None:
    server, image = ScriptedServer(), noise_image((400, 300))
    first, second = sent_images(server, image)
    assert first == second and len(_ENCODINGS[image]) == 1
    assert decoded(first).tobytes() == image.pixels.tobytes()
    assert server.seen[0]["messages"][0]["content"][1] == {"type": "text", "text": "What is it? Answer."}


def test_an_image_is_resized_to_max_pixels_and_encoded_once_for_each_size() -> None:
    server, image = ScriptedServer(), noise_image((400, 300))
    sent_images(server, image)
    first, second = sent_images(server, image, max_pixels=30_000)
    assert first == second and len(_ENCODINGS[image]) == 2
    assert decoded(first).size == (200, 150)


def test_sampling_reaches_the_server_and_neutral_values_are_not_sent() -> None:
    server = ScriptedServer()

    async def call_with_both(engine: OpenAIEngine) -> None:
        await engine.generate(prompt(), SAMPLING)
        await engine.generate(prompt(), Sampling(9, 0.7, 0.9, 20, 1.1, 3, True, 0.1, 1.5, 0.5, ("[[", "]]")))

    with_servers([server], call_with_both)
    first, second = [{k: v for k, v in body.items() if k not in ("messages", "model")} for body in server.seen]
    assert first == {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0}
    assert second == {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1,
                      "seed": 3, "ignore_eos": True, "min_p": 0.1, "presence_penalty": 1.5, "frequency_penalty": 0.5,
                      "stop": ["[[", "]]"]}  # fmt: skip
