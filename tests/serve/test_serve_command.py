"""The command `lmms-eval-mai serve` in a process of its own."""

import asyncio
import os
import random
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from support.pair import written
from support.processes import Command
from support.serving import chat, chat_records, data_url, image_url, start_command, user, wait_until

from lmms_eval_mai.method.prompts import instruction
from lmms_eval_mai.plugin import task_dir

CHAT = "/v1/chat/completions"
QUESTIONS, KILLED_AFTER = 60, 10
"""Questions in all, and those that are answered before an engine is killed."""
SECRETS = ("Is there a dog", "the-key", "data:image")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_signal_stops_the_server_after_the_requests_in_flight_are_answered(how: int, tmp_path: Path) -> None:
    models = written(tmp_path, chat_records(8, seconds=0.6))
    mine = tmp_path / "mine.yaml"
    mine.write_text("[{ask: large.simple}, {stop: {exit: guessed, answer: large.simple}}]")
    process, url = start_command(tmp_path, "--api_key_env", "SERVER_KEY", "--methods", str(mine), **models)
    headers = {"Authorization": "Bearer the-key"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client, ThreadPoolExecutor(6) as pool:

        def ask(_: int, **fields: Any) -> Any:
            return client.post(CHAT, json=chat(**fields))

        first = ask(0, mai={"method": "mine"}).json()
        assert first["choices"][0]["message"]["content"] == "answer 0"
        assert (first["mai"]["method"], first["mai"]["exit"]) == ("mine", "guessed")
        kind, data = image_url(format="BMP").split(",")  # lmms-eval lets Pillow read images without their end
        cut = client.post(CHAT, json=chat() | {"messages": [user("Hm?", f"{kind},{data[: len(data) // 8 * 4]}")]})
        assert cut.status_code == 400 and cut.json()["error"]["code"] == "invalid_image"
        replies = [pool.submit(ask, number) for number in range(6)]
        wait_until(lambda: client.get("/health").json()["requests"] == 6)
        os.kill(process.process.pid or 0, how)
        found = {reply.result(60).json()["choices"][0]["message"]["content"] for reply in replies}
    assert found == {f"answer {number}" for number in range(2, 8)}
    code, text = process.end()
    assert code == (130 if how == signal.SIGINT else 0), text
    assert not any(secret in text for secret in SECRETS)


@pytest.mark.slow
def test_engine_that_cannot_be_started_again_ends_the_server_with_1(tmp_path: Path) -> None:
    made = chat_records(2)
    made["large"][0]["fault"] = "death"
    process, url = start_command(tmp_path, **written(tmp_path, made), engine_restarts=0)
    response = httpx.post(f"{url}{CHAT}", json=chat(), timeout=60)
    assert response.status_code == 503 and response.json()["error"]["code"] == "engine_down"
    assert int(response.headers["Retry-After"]) > 0
    code, text = process.end()
    assert code == 1 and "The large engine is not restarted" in " ".join(text.split()) and "Traceback" not in text


@pytest.mark.long
def test_sigterm_while_the_engines_start_ends_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an engine's server that never answers
        url, log = f"http://127.0.0.1:{silent.getsockname()[1]}/v1", tmp_path / "log"
        arguments = ["serve", "--port", "0", "--model_args", f"small={url},large={url}"]
        process = Command(tmp_path, log, *arguments, name="lmms-eval-mai")
        wait_until(lambda: log.exists() and "starting small=" in log.read_text())
        process.process.terminate()
        code, text = process.end()
    assert code == 143 and "Traceback" not in text


def messages_of(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chat of a document as lmms-eval's model `async_openai` sends it."""
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    return [user(text, data_url(doc["image"]))]


async def ask(client: openai.AsyncOpenAI, doc: dict[str, Any]) -> Any:
    """Return the reply to the question of a document."""
    own = {"model": "pair", "temperature": 0, "max_tokens": 4096, "extra_body": {"mai": {"benchmark": "shapes"}}}
    return await client.chat.completions.create(messages=messages_of(doc), **own)  # type: ignore[call-overload]


async def watch(http: httpx.AsyncClient, status: int) -> None:
    """Wait until the server reports this status of its health."""
    async with asyncio.timeout(300):
        while (await http.get("/health")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.long
def test_replies_are_those_of_an_lmms_eval_run_also_after_an_engine_is_killed(demo_run: Any, tmp_path: Path) -> None:
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    docs = list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(QUESTIONS)))
    process, url = start_command(tmp_path, "--pair", "demo", dtype="float32", max_open_samples=16)

    def cores() -> list[psutil.Process]:
        below = psutil.Process(process.process.pid).children(recursive=True)
        return [child for child in below if "EngineCore" in " ".join(child.cmdline())]

    async def ask_all() -> list[Any]:
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            answered = await asyncio.gather(*(ask(client, doc) for doc in docs[:KILLED_AFTER]))
            random.choice(cores()).kill()  # without any work
            await watch(http, 503)
            await watch(http, 200)
            asking = [asyncio.ensure_future(ask(client, doc)) for doc in docs[KILLED_AFTER:]]
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            random.choice(cores()).kill()
            await watch(http, 503)
            await watch(http, 200)
            return answered + await asyncio.gather(*asking)

    try:
        replies = asyncio.run(ask_all())
    finally:
        process.process.terminate()
        code, text = process.end()
    assert code == 0, text
    samples = demo_run[1][:QUESTIONS]
    assert [[reply.choices[0].message.content] for reply in replies] == [one["filtered_resps"] for one in samples]
    assert [reply.mai["exit"] for reply in replies] == [one["token_counts"][0]["exit"] for one in samples]
    output = [sum(call["output_tokens"] for call in one["token_counts"][0]["calls"]) for one in samples]
    assert [reply.usage.completion_tokens for reply in replies] == output
    assert len({reply.id for reply in replies}) == QUESTIONS
