"""Calls that several runs share, and the file that keeps them."""

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

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


class Made(NamedTuple):
    """A call, and how many calls the engine has made and the file has after it."""

    call: Call
    by_engine: int
    in_file: int


def prompt(doc_id: int = 0, task: str = "pope_r", image: int = 0) -> Prompt:
    return Prompt(sample(doc_id=image).question, CallKey(task, doc_id, 0, "small", "think"))


def make(path: Path, *wanted: tuple[str, Prompt, Sampling], model: str = "script") -> list[Made]:
    """Make calls with a new engine that shares the calls of the file. `wanted`: the run, the prompt and the decoding of
    each call."""
    script, found = Script(model), []

    def kept() -> int:
        return len(path.read_text().splitlines())

    async def run() -> None:
        engine = ScriptedEngine("small", script, ScriptedOptions())
        await engine.start()
        sharing = SharingEngine(MeasuredEngine(engine), calls)
        for name, asked, sampling in wanted:
            calls.run = name
            call = await sharing.generate(asked, sampling)
            found.append(Made(call, script.calls, kept()))

    calls = SharedCalls(path)
    try:
        asyncio.run(run())
    finally:
        calls.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


def test_call_of_another_run_is_found_with_its_tokens_and_without_its_times(path: Path) -> None:
    (made, *_), (found, by_engine, _) = make(
        path, ("small/pope_r", prompt(), GREEDY), ("cascade/pope_s", prompt(task="pope_s"), GREEDY)
    )
    assert by_engine == 1 and not made.shared and made.started_at is not None
    assert (found.key.task, found.text, found.prompt_tokens, found.output_tokens) == ("pope_s", "answer 1", 7, 3)
    assert (found.shared, found.total_s, found.queued_s, found.ttft_s, found.started_at) == (True, 0, None, None, None)


def test_other_prompts_other_images_other_arguments_and_other_models_are_other_calls(path: Path) -> None:
    twice = Prompt(sample(doc_id=0).question * 2, prompt().key)
    more = Sampling(max_tokens=5)
    others = [("b", prompt(image=1), GREEDY), ("b", prompt(), more), ("b", twice, GREEDY)]
    assert make(path, ("a", prompt(), GREEDY), *others)[-1].by_engine == 4
    ((_, by_engine, in_file),) = make(path, ("c", prompt(), GREEDY), model="another")
    assert (by_engine, in_file) == (1, 5)


def test_sampled_calls_and_equal_prompts_of_two_documents_of_one_run_are_not_shared(path: Path) -> None:
    sampled = Sampling(max_tokens=4, temperature=0.7, seed=1)
    documents = [("c", prompt(doc_id), GREEDY) for doc_id in range(2)]
    found = make(path, ("a", prompt(), sampled), ("b", prompt(), sampled), *documents)
    assert [(call.shared, *numbers) for call, *numbers in found] == [
        (False, 1, 0), (False, 2, 0), (False, 3, 1), (False, 4, 1),
    ]  # fmt: skip


def test_calls_of_an_earlier_process_are_found_and_a_run_keeps_the_times_of_its_own(path: Path) -> None:
    ((made, *_),) = make(path, ("a", prompt(), GREEDY))
    (own, *_), (shared, by_engine, _) = make(path, ("a", prompt(), GREEDY), ("b", prompt(), GREEDY))
    assert (own, by_engine) == (made, 0) and made.started_at is not None and made.started_at <= time.time()
    assert shared.shared and shared.text == made.text


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_torn_last_line_is_dropped_and_its_call_is_made_again(path: Path, cut: int) -> None:
    make(path, *(("a", prompt(image=image), GREEDY) for image in range(2)))
    path.write_bytes(path.read_bytes()[:-cut])
    for by_engine in (1, 0):
        found = make(path, *(("b", prompt(image=image), GREEDY) for image in range(2)))
        assert found[-1][1:] == (by_engine, 2)


def test_damaged_line_is_named_and_its_call_is_made_again(path: Path, warnings: list[str]) -> None:
    make(path, ("a", prompt(), GREEDY))
    line = path.read_bytes()
    path.write_bytes(line[: len(line) // 2] + b"\n")
    assert make(path, ("b", prompt(), GREEDY))[0].by_engine == 1
    assert warnings == [f"mai_cascade: 1 lines of {path} are damaged. Their calls are made again."]


def test_second_command_on_the_same_file_is_refused(path: Path) -> None:
    calls = SharedCalls(path)
    try:
        with pytest.raises(JournalError, match=r"Another `lmms-eval-mai reproduce` writes .*calls.jsonl"):
            SharedCalls(path)
    finally:
        calls.close()
