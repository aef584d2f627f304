"""The server on the demo pair: its answers are those of an lmms-eval run, also if an engine is killed."""

import asyncio
import base64
import contextlib
import io
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import openai
import psutil
import pytest
from support.serving import address_in

from lmms_eval_mai.paper.prompts import instruction
from lmms_eval_mai.plugin import task_dir

if TYPE_CHECKING:
    from support.processes import Command

QUESTIONS = 60
KILLED_AFTER = 10
"""Questions that are answered before an engine is killed."""


@pytest.fixture(scope="module")
def demo_server(demo_run: Any, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[tuple[Command, str]]":
    """The process of a server on the demo pair, and its address."""
    from support.processes import Command

    folder = tmp_path_factory.mktemp("demo-server")
    log = folder / "log"
    arguments = ["serve", "--pair", "demo", "--port", "0", "--model_args", "dtype=float32,max_open_samples=16"]
    process = Command(folder, log, *arguments, name="lmms-eval-mai", engines=True)
    try:
        yield process, address_in(log, process.process)
    finally:
        process.process.terminate()
        code, text = process.end()
    assert code == 0, text


def messages_of(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chat of a document as lmms-eval's model `async_openai` sends it."""
    file = io.BytesIO()
    doc["image"].save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


def documents() -> list[dict[str, Any]]:
    """Return the first documents of `shapes_s`."""
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    return list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(QUESTIONS)))


async def ask(client: openai.AsyncOpenAI, doc: dict[str, Any]) -> Any:
    """Return the reply to the question of a document."""
    return await client.chat.completions.create(
        model="demo",
        messages=messages_of(doc),  # type: ignore[arg-type]
        temperature=0,
        max_tokens=4096,
        extra_body={"mai": {"benchmark": "shapes"}},
    )


def cores_of(process: "Command") -> list[psutil.Process]:
    """Return the processes of the engines of a server: they are the children of its fork server."""
    below = psutil.Process(process.process.pid).children(recursive=True)
    found = [one for one in below if one.ppid() != process.process.pid]
    assert len(found) == 2
    return found


async def watch(http: httpx.AsyncClient, status: int) -> dict[str, Any]:
    """Wait until the server reports this status of its health, and return the report."""
    async with asyncio.timeout(300):
        while (response := await http.get("/health")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found: dict[str, Any] = response.json()
    return found


def test_replies_are_the_answers_and_exits_of_an_lmms_eval_run_also_after_an_engine_is_killed(
    demo_run: Any, demo_server: "tuple[Command, str]"
) -> None:
    process, url = demo_server
    core = random.choice(cores_of(process))

    async def ask_all() -> list[Any]:
        docs = documents()
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            answered = await asyncio.gather(*(ask(client, doc) for doc in docs[:KILLED_AFTER]))
            core.suspend()  # every document asks both engines, so none of these can end
            asking = [asyncio.ensure_future(ask(client, doc)) for doc in docs[KILLED_AFTER:]]
            while (await http.get("/health")).json()["requests"] < len(asking):
                done, _ = await asyncio.wait(asking, timeout=0.01)
                assert not done, done
            core.kill()
            assert len((await watch(http, 503))["down"]) == 1
            await watch(http, 200)
            return answered + await asyncio.gather(*asking)

    try:
        replies = asyncio.run(ask_all())
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            core.resume()  # the server could not stop
    samples = demo_run[1][:QUESTIONS]
    assert [sample["doc_id"] for sample in samples] == list(range(QUESTIONS))
    assert [[reply.choices[0].message.content] for reply in replies] == [one["filtered_resps"] for one in samples]
    assert [reply.mai["exit"] for reply in replies] == [one["token_counts"][0]["exit"] for one in samples]
    output = [sum(call["output_tokens"] for call in one["token_counts"][0]["calls"]) for one in samples]
    assert [reply.usage.completion_tokens for reply in replies] == output
    assert len({reply.id for reply in replies}) == QUESTIONS


def test_an_engine_that_dies_while_nobody_asks_is_restarted_before_the_next_request(
    demo_run: Any, demo_server: "tuple[Command, str]"
) -> None:
    process, url = demo_server

    async def ask_later() -> Any:
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            assert (await watch(http, 200))["requests"] == 0
            random.choice(cores_of(process)).kill()
            assert len((await watch(http, 503))["down"]) == 1
            await watch(http, 200)
            return await ask(client, documents()[0])

    assert [asyncio.run(ask_later()).choices[0].message.content] == demo_run[1][0]["filtered_resps"]
