"""The server on the demo pair: its answers are those of an lmms-eval run, also if an engine is killed."""

import asyncio
import random
from typing import TYPE_CHECKING, Any

import httpx
import openai
import psutil
import pytest
from support.serving import address_in, data_url, user

from lmms_eval_mai.method.prompts import instruction
from lmms_eval_mai.plugin import task_dir

if TYPE_CHECKING:
    from pathlib import Path

    from support.processes import Command

pytestmark = pytest.mark.long
QUESTIONS, KILLED_AFTER = 60, 10
"""Questions in all, and those that are answered before an engine is killed."""


def messages_of(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chat of a document as lmms-eval's model `async_openai` sends it."""
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    return [user(text, data_url(doc["image"]))]


async def ask(client: openai.AsyncOpenAI, doc: dict[str, Any]) -> Any:
    """Return the reply to the question of a document."""
    own = {"model": "demo", "temperature": 0, "max_tokens": 4096, "extra_body": {"mai": {"benchmark": "shapes"}}}
    return await client.chat.completions.create(messages=messages_of(doc), **own)  # type: ignore[call-overload]


async def watch(http: httpx.AsyncClient, status: int) -> None:
    """Wait until the server reports this status of its health."""
    async with asyncio.timeout(300):
        while (await http.get("/health")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_replies_are_those_of_an_lmms_eval_run_also_after_an_engine_is_killed(
    demo_run: Any, command: "type[Command]", tmp_path: "Path"
) -> None:
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    docs = list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(QUESTIONS)))
    arguments = ["serve", "--pair", "demo", "--port", "0", "--model_args", "dtype=float32,max_open_samples=16"]
    process = command(tmp_path, tmp_path / "log", *arguments, name="lmms-eval-mai")
    url = address_in(tmp_path / "log", process.process)

    def cores() -> list[psutil.Process]:
        below = psutil.Process(process.process.pid).children(recursive=True)
        return [child for child in below if "EngineCore" in " ".join(child.cmdline())]

    core = random.choice(cores())

    async def ask_all() -> list[Any]:
        nonlocal core
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            answered = await asyncio.gather(*(ask(client, doc) for doc in docs[:KILLED_AFTER]))
            core.kill()  # without any work
            await watch(http, 503)
            await watch(http, 200)
            core = random.choice(cores())
            core.suspend()  # every document asks both engines, so none of these can end
            asking = [asyncio.ensure_future(ask(client, doc)) for doc in docs[KILLED_AFTER:]]
            while (await http.get("/health")).json()["requests"] < len(asking):
                done, _ = await asyncio.wait(asking, timeout=0.01)
                assert not done, done
            core.kill()
            await watch(http, 503)
            await watch(http, 200)
            return answered + await asyncio.gather(*asking)

    try:
        replies = asyncio.run(ask_all())
    finally:
        if core.is_running():
            core.kill()  # the server could not stop
        process.process.terminate()
        code, text = process.end()
    assert code == 0, text
    samples = demo_run[1][:QUESTIONS]
    assert [[reply.choices[0].message.content] for reply in replies] == [one["filtered_resps"] for one in samples]
    assert [reply.mai["exit"] for reply in replies] == [one["token_counts"][0]["exit"] for one in samples]
    output = [sum(call["output_tokens"] for call in one["token_counts"][0]["calls"]) for one in samples]
    assert [reply.usage.completion_tokens for reply in replies] == output
    assert len({reply.id for reply in replies}) == QUESTIONS
