"""Streamed replies: the steps of the cascade, the thinking, the answer, and errors after the first part."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.serving import EXITS, Running, chat, chat_records, scripted, serving, user, wait_until, written


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(**scripted(tmp_path_factory.mktemp("scripts"), 30)) as running:
        yield running


def chunks_of(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a streamed reply. The last one of a reply that is not complete is the error."""
    lines = text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(line.startswith("data: ") for line in lines)
    assert ("error" in chunks[-1]) is not text.endswith("data: [DONE]\n\n")
    return chunks


def steps_in(chunks: list[dict[str, Any]]) -> list[str]:
    """Return the steps of the cascade in a streamed reply."""
    return [chunk["mai"]["progress"] for chunk in chunks if "progress" in chunk.get("mai", {})]


def test_stream_has_the_steps_the_thinking_the_answer_and_the_trace(api: Running) -> None:
    for _ in EXITS:
        number = api.service.asked
        response = api.post(chat(stream=True, stream_options={"include_usage": True}))
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = chunks_of(response.text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        thinking = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
        assert "".join(delta.get("content", "") for delta in deltas) == f"answer {number}"
        assert len(thinking) == (number % 3 > 0) and all(text.startswith(f"I see {number}.") for text in thinking)
        steps = ["large short", "small short", "small think", "large transfer"][: 2 + number % 3]
        assert sorted(steps_in(chunks)) == sorted(f"{step} {state}" for step in steps for state in ("begun", "done"))
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "stop"]
        assert chunks[-2]["mai"]["exit"] == EXITS[number % 3]
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == 100 * len(steps)
        assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.slow
def test_load_generator_of_vllm_reads_a_stream(api: Running) -> None:
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncInput, async_request_openai_chat_completions

    async def ask(text: str) -> str:
        given = RequestFuncInput(
            text, f"{api.url}/v1/chat/completions", 1, 64, "pair", chat_messages=chat()["messages"]
        )
        async with aiohttp.ClientSession() as session:
            return (await async_request_openai_chat_completions(given, session)).generated_text

    number = api.service.asked
    assert [asyncio.run(ask("Hm?")) for _ in EXITS] == [f"answer {number + one}" for one in range(3)]


def test_error_before_the_first_call_has_its_status_also_in_a_stream(api: Running) -> None:
    for body in (
        chat(stream=True, temperature=-1),
        chat(stream=True) | {"messages": [user("Hm?", "data:image/png;base64,QUJD")]},
        chat(stream_options={"include_usage": True}),
    ):
        assert api.refused(body)[0] == 400
    assert api.service.admission.count == 0


@pytest.mark.slow
def test_error_after_the_first_part_is_a_part_of_the_stream(tmp_path: Path) -> None:
    small, large = chat_records(2)
    small = [record | ({"fault": "error"} if record["stage"] == "think" else {}) for record in small]
    with serving(**written(tmp_path, small, large)) as server:
        server.ask()
        *chunks, last = chunks_of(server.post(chat(stream=True)).text)
        assert "small think failed" in steps_in(chunks) and last["error"]["code"] == "sample_failed"
        metrics = server.client.get("/metrics").text
        assert 'mai_errors_total{error="SampleError",side="small"} 1.0' in metrics
        assert 'mai_replies_total{status="500"} 1.0' in metrics and 'mai_replies_total{status="200"} 1.0' in metrics


@pytest.mark.slow
def test_client_that_leaves_a_stream_frees_both_engines(tmp_path: Path) -> None:
    small, large = chat_records(3)
    large[0]["fault"] = "hang"
    arguments = written(tmp_path, small, large) | {"slots": 1, "max_open_samples": 1}
    with serving(**arguments) as server, ThreadPoolExecutor(1) as pool:
        with server.client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
            assert next(response.iter_lines()).startswith("data: ")
            waiting = pool.submit(server.ask)
            wait_until(lambda: server.service.asked == 2)
        assert waiting.result(20)["choices"][0]["message"]["content"] == "answer 1"
        wait_until(lambda: server.service.admission.count == 0)


@pytest.mark.slow
def test_stream_that_takes_too_long_ends_with_an_error(tmp_path: Path) -> None:
    small, large = chat_records(2)
    large[0]["fault"] = "hang"
    with serving({"request_timeout": 0.3}, **written(tmp_path, small, large)) as server:
        assert chunks_of(server.post(chat(stream=True)).text)[-1]["error"]["code"] == "request_timeout"
        server.change(request_timeout=60)
        assert server.ask()["choices"][0]["message"]["content"] == "answer 1"
