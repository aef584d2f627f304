"""A real vLLM server that is killed while samples run."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.endpoints import engine_of, until
from support.samples import sample
from support.servers import Server

from lmms_eval_mai.contract import Call, CallKey, Message
from lmms_eval_mai.engines.restart import RestartedEngine
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.methods import SMALL
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Settings, Trace
from lmms_eval_mai.run.scheduler import run_samples
from lmms_eval_mai.run.store import Store

SAMPLES = 80

pytestmark = pytest.mark.long


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
