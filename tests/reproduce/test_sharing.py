"""Calls that several runs share, and the file that keeps them."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.samples import sample

from lmms_eval_mai.contract import Call, CallKey, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.reproduce.sharing import SharedCalls, SharingEngine
from lmms_eval_mai.run.measured_engine import MeasuredEngine

GREEDY = Sampling(max_tokens=4)


class Script:
    """Answers with the number of calls that it got so far."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, 0

    def __call__(self, prompt: Prompt) -> Answer:
        self.calls += 1
        return Answer(f"answer {self.calls}", prompt_tokens=7, output_tokens=3, seconds=0.001)


def prompt(doc_id: int = 0, task: str = "pope_r", image: int = 0) -> Prompt:
    return Prompt(sample(doc_id=image).question, CallKey(task, doc_id, 0, "small", "think"))


def in_file(path: Path, use: Callable[[SharedCalls, Any, Script], Any], name: str = "script") -> Any:
    """Run `use` with the file, an engine that shares its calls, and the script of the engine."""
    script = Script(name)

    async def started() -> Any:
        engine = ScriptedEngine("small", script, ScriptedOptions())
        await engine.start()
        return await use(calls, SharingEngine(MeasuredEngine(engine), calls), script)

    calls = SharedCalls(path)
    try:
        return asyncio.run(started())
    finally:
        calls.close()


def kept(calls: SharedCalls) -> int:
    """The number of calls in the file."""
    return len(calls.path.read_text().splitlines())


def test_call_of_another_run_is_found_with_its_tokens_and_without_its_times(tmp_path: Path) -> None:
    async def two_runs(calls: SharedCalls, engine: Any, script: Script) -> tuple[Call, Call, int]:
        calls.run = "small/pope_r"
        made = await engine.generate(prompt(), GREEDY)
        calls.run = "cascade/pope_s"
        return made, await engine.generate(prompt(task="pope_s"), GREEDY), script.calls

    made, found, count = in_file(tmp_path / "calls.jsonl", two_runs)
    assert count == 1 and not made.shared and made.started_at is not None
    assert (found.key.task, found.text, found.prompt_tokens, found.output_tokens) == ("pope_s", "answer 1", 7, 3)
    assert (found.shared, found.total_s, found.queued_s, found.ttft_s, found.started_at) == (True, 0, None, None, None)


def test_other_prompts_other_images_and_other_arguments_are_other_calls(tmp_path: Path) -> None:
    async def run(calls: SharedCalls, engine: Any, script: Script) -> int:
        calls.run = "a"
        await engine.generate(prompt(), GREEDY)
        calls.run = "b"
        await engine.generate(prompt(image=1), GREEDY)
        await engine.generate(prompt(), Sampling(max_tokens=5))
        await engine.generate(Prompt(sample(doc_id=0).question * 2, prompt().key), GREEDY)
        return script.calls

    assert in_file(tmp_path / "calls.jsonl", run) == 4


def test_sampled_calls_and_equal_prompts_of_two_documents_of_one_run_are_not_shared(tmp_path: Path) -> None:
    async def run(calls: SharedCalls, engine: Any, script: Script) -> list[tuple[bool, int, int]]:
        found = []
        for name, doc_id, sampling in (
            *((name, 0, Sampling(max_tokens=4, temperature=0.7, seed=1)) for name in ("a", "b")),
            *(("c", doc_id, GREEDY) for doc_id in range(2)),
        ):
            calls.run = name
            call = await engine.generate(prompt(doc_id), sampling)
            found.append((call.shared, script.calls, kept(calls)))
        return found

    assert in_file(tmp_path / "calls.jsonl", run) == [(False, 1, 0), (False, 2, 0), (False, 3, 1), (False, 4, 1)]


def test_calls_of_an_earlier_process_are_found_and_a_run_keeps_the_times_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"

    async def first(calls: SharedCalls, engine: Any, script: Script) -> Call:
        calls.run = "a"
        found: Call = await engine.generate(prompt(), GREEDY)
        return found

    async def second(calls: SharedCalls, engine: Any, script: Script) -> tuple[Call, Call, int]:
        calls.run = "a"
        own = await engine.generate(prompt(), GREEDY)
        calls.run = "b"
        return own, await engine.generate(prompt(), GREEDY), script.calls

    made = in_file(path, first)
    own, shared, count = in_file(path, second)
    assert (own, count) == (made, 0) and made.started_at is not None and made.started_at <= time.time()
    assert shared.shared and shared.text == made.text


def test_call_of_another_model_is_not_found(tmp_path: Path) -> None:
    async def run(calls: SharedCalls, engine: Any, script: Script) -> tuple[int, int]:
        calls.run = f"run {kept(calls)}"
        await engine.generate(prompt(), GREEDY)
        return script.calls, kept(calls)

    path = tmp_path / "calls.jsonl"
    assert [in_file(path, run, name=name) for name in ("one", "other")] == [(1, 1), (1, 2)]


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_torn_last_line_is_dropped_and_its_call_is_made_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "calls.jsonl"

    async def run(calls: SharedCalls, engine: Any, script: Script) -> tuple[int, int]:
        calls.run = "b" if kept(calls) else "a"
        for image in range(2):
            await engine.generate(prompt(image=image), GREEDY)
        return script.calls, kept(calls)

    assert in_file(path, run) == (2, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    assert in_file(path, run) == (1, 2)
    assert in_file(path, run) == (0, 2)


def test_damaged_line_is_named_and_its_call_is_made_again(tmp_path: Path, warnings: list[str]) -> None:
    path = tmp_path / "calls.jsonl"

    async def run(calls: SharedCalls, engine: Any, script: Script) -> int:
        calls.run = "b"
        await engine.generate(prompt(), GREEDY)
        return script.calls

    in_file(path, run)
    line = path.read_bytes()
    path.write_bytes(line[: len(line) // 2] + b"\n")
    assert in_file(path, run) == 1
    assert warnings == [f"mai_cascade: 1 lines of {path} are damaged. Their calls are made again."]


def test_second_command_on_the_same_file_is_refused(tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path / "calls.jsonl")
    try:
        with pytest.raises(JournalError, match=r"Another `lmms-eval-mai reproduce` writes .*calls.jsonl"):
            SharedCalls(tmp_path / "calls.jsonl")
    finally:
        calls.close()
