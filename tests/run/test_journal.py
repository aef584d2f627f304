"""The journal of one rank: what it warns of, what it resumes, and when it is removed."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image as PilImage

from lmms_eval_mai.contract import (
    AttentionRequest,
    Call,
    CallKey,
    Image,
    Message,
    Prompt,
    Sampling,
    TokenWeights,
)
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal import removal as journal_removal
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.journal.journaled_engine import prompt_digest

OLD_JOURNAL = Path(__file__).with_name("unfinished_journal_of_format_2.jsonl")
"""A scripted run of 12 POPE documents, killed after two samples, as commit ae9735c (2026-11-21) wrote it."""
OLD_NAME = "82969b983faf4219-0of1.jsonl"

R = {"mode": "cascade", "think": "R"}
E = {"mode": "cascade", "think": "E"}
KEY = CallKey("pope_s", 0, 0, "small", "short")
LARGE = CallKey("pope_s", 0, 0, "large", "score")
SAMPLE = ("pope_s", 0, 0)


async def add_sample(journal: Journal) -> None:
    await journal.add_call(Call(KEY, "Yes", "stop", 1, 0, 1, 0, 0, 0), "prompt", [])
    await journal.add_exit(SAMPLE, "agree_short", 1.0)


def unfinished(folder: Path, fingerprint: dict[str, str] = R) -> Path:
    """Write the journal of an unfinished run; return its path."""
    journal = Journal(folder, fingerprint, ["pope_s"])
    asyncio.run(add_sample(journal))
    journal.close()
    return journal.path


def test_warning_about_an_unfinished_run_lists_at_most_five_differences(tmp_path: Path, warnings: list[str]) -> None:
    models = {"small engine": "vllm 0.32.0", "small model": "a b"}
    unfinished(tmp_path, {**R, **models, **{f"argument {number}": "1" for number in range(9)}})
    Journal(tmp_path, {**R, **models, "small engine": "vllm 0.33.0"}, ["pope_s"]).close()
    (warning,) = warnings
    assert "argument 0 was 1 and is not given; " in warning and warning.count(" was ") == 5
    assert "argument 4 was 1 and is not given; 5 more differ. Its journal" in warning


@pytest.mark.parametrize(
    ("previous", "tasks"),
    [
        ({**R, "mode": "transfer"}, ["pope_s"]),
        ({**R, "large model": "org/other"}, ["pope_s"]),
        ({**R, "small engine": "transformers 5.19.0"}, ["pope_s"]),
        (R, ["pope_e"]),
    ],
    ids=["mode", "model", "engine", "tasks"],
)
def test_unfinished_run_in_another_mode_or_with_other_models_or_of_other_tasks_is_not_mentioned(
    tmp_path: Path, warnings: list[str], previous: dict[str, str], tasks: list[str]
) -> None:
    unfinished(tmp_path, previous)
    Journal(tmp_path, E, tasks).close()
    assert warnings == []


@contextlib.contextmanager
def other_process(folder: Path, steps: str) -> Iterator[subprocess.Popen[str]]:
    """Open the journal of the run in another process, do the steps there, and wait for its end after the block."""
    lines = [
        "import asyncio, sys",
        "from pathlib import Path",
        "from lmms_eval_mai.contract import Call, CallKey",
        "from lmms_eval_mai.run.journal.journal import Journal",
        f"journal = Journal(Path({str(folder)!r}), {R}, ['pope_s'])",
        steps,
        "print('ready', flush=True)",
        "sys.stdin.read()",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process


def is_locked_for_others(path: Path) -> bool:
    """Return whether another process sees that the journal is written."""
    code = (
        "import sys, pathlib, lmms_eval_mai.run.journal.lock as lock; print(lock.is_locked(pathlib.Path(sys.argv[1])))"
    )
    seen = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return seen.stdout == "True\n"


def test_run_of_another_process_is_mentioned_only_after_that_process_was_killed(
    tmp_path: Path, warnings: list[str]
) -> None:
    call = "Call(CallKey('pope_s', 0, 0, 'small', 'short'), 'Yes', 'stop', 1, 0, 1, 0, 0, 0)"
    with other_process(tmp_path, f"asyncio.run(journal.add_call({call}, 'prompt', []))") as process:
        Journal(tmp_path, E, ["pope_s"]).close()
        assert warnings == []
        process.kill()
    Journal(tmp_path, E, ["pope_s"]).close()
    assert len(warnings) == 1


def test_run_of_this_process_is_not_mentioned_and_keeps_its_lock_and_its_files(
    tmp_path: Path, warnings: list[str]
) -> None:
    running = Journal(tmp_path, R, ["pope_s"])
    asyncio.run(add_sample(running))
    before = len(os.listdir("/proc/self/fd"))
    Journal(tmp_path, E, ["pope_s"]).close()
    with pytest.raises(JournalError):
        Journal(tmp_path, R, ["pope_s"])
    assert is_locked_for_others(running.path)
    assert (len(os.listdir("/proc/self/fd")), warnings) == (before, [])
    running.close()


def test_run_that_this_process_completed_is_mentioned_only_if_its_results_are_lost(
    tmp_path: Path, warnings: list[str]
) -> None:
    journal = Journal(tmp_path, R, ["pope_s"])
    asyncio.run(add_sample(journal))
    journal.close()
    journal.complete({SAMPLE}, results_written=lambda: True)
    Journal(tmp_path, E, ["pope_s"]).close()
    assert warnings == []
    assert journal_removal.keep() == [journal.path]
    Journal(tmp_path, E, ["pope_s"]).close()
    assert len(warnings) == 1 and journal.path.exists()


def test_same_run_in_the_same_process_starts_anew_after_its_results_were_written(tmp_path: Path) -> None:
    for written in (False, True):
        unfinished(tmp_path)
        journal = Journal(tmp_path, R, ["pope_s"])
        journal.close()
        journal.complete({SAMPLE}, results_written=lambda written=written: written)  # type: ignore[misc]
        again = Journal(tmp_path, R, ["pope_s"])
        assert again.empty == written
        again.close()


def test_completed_run_does_not_remove_its_journal_under_a_second_run_of_the_same_command(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    with other_process(tmp_path, f"journal.close(); journal.complete({{{SAMPLE}}}, lambda: True)") as first:
        second = Journal(tmp_path, R, ["pope_s"])
        first.communicate("")
        assert path.exists() and second.calls == 1
        second.close()
        second.complete({SAMPLE})
    assert not path.exists()


def test_completed_run_keeps_its_journals_locked_until_they_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a run have several files. Another run must not begin while one of them is still read."""
    for rank in range(2):
        journal = Journal(tmp_path, R, ["pope_s"], rank, world_size=2)
        asyncio.run(add_sample(journal))
        journal.close()
    unlink, seen = Path.unlink, []

    def look_then_unlink(path: Path, *rest: object) -> None:
        seen.append(is_locked_for_others(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", look_then_unlink)
    journal.complete({SAMPLE})
    assert seen == [True, True] and list(tmp_path.iterdir()) == []


def test_journal_that_another_process_removes_while_it_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lockf = unfinished(tmp_path), fcntl.lockf

    def remove_then_lock(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "lockf", lockf)
        path.unlink()  # what the other process does between the opening and the lock
        lockf(file, operation)

    monkeypatch.setattr(fcntl, "lockf", remove_then_lock)
    journal = Journal(tmp_path, R, ["pope_s"])
    asyncio.run(add_sample(journal))
    journal.close()
    assert journal.calls == 0 and len(path.read_text().splitlines()) == 3


def test_journal_of_format_2_by_an_older_version_can_still_be_read(tmp_path: Path) -> None:
    shutil.copy(OLD_JOURNAL, tmp_path / OLD_NAME)
    head, *lines = [json.loads(line) for line in OLD_JOURNAL.read_text().splitlines()]
    journal = Journal(tmp_path, head["fingerprint"], ["pope_s"])
    assert journal.path.name == OLD_NAME
    calls = [line for line in lines if "call" in line]
    assert journal.calls == len(calls) > 0 and len(journal.done([(*SAMPLE[:1], n, 0) for n in range(12)])) == 2
    for line in calls:
        found = journal.find(CallKey(*line["key"]), line["prompt"])
        assert found is not None and found.text == line["call"]["text"]
    journal.close()


def test_incomplete_last_line_is_cut_off_and_damaged_lines_are_left_out_with_a_warning(
    tmp_path: Path, warnings: list[str]
) -> None:
    path = unfinished(tmp_path)
    head, call, exit = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + b'\x00{"key":\n7\n' + call + exit[:-9])
    journal = Journal(tmp_path, R, ["pope_s"])
    assert (journal.calls, journal.done([SAMPLE])) == (1, set())
    found = journal.find(KEY, "prompt")
    assert found is not None and found.text == "Yes"
    asyncio.run(journal.add_exit(SAMPLE, "agree_short", 1.0))
    journal.close()
    assert path.read_bytes() == head + b'\x00{"key":\n7\n' + call + exit
    (warning,) = warnings
    assert "2 lines of" in warning


def test_only_the_user_can_read_a_journal(tmp_path: Path) -> None:
    assert stat.S_IMODE(unfinished(tmp_path).stat().st_mode) == 0o600


def test_call_with_attention_is_read_as_it_was_written(tmp_path: Path) -> None:
    weights = TokenWeights(("a", "\u2028", ""), ((0.1, 1e-300, 1.0), (1 / 3, 0.0, 5e-324)))
    call = Call(KEY, "Yes", "length", 9, 0, 1, 0.0, 0.1, 0.2, attention=weights)
    journal = Journal(tmp_path, R, ["pope_s"])
    asyncio.run(journal.add_call(call, "digest", []))
    journal.close()
    journal = Journal(tmp_path, R, ["pope_s"])
    assert journal.find(KEY, "digest") == call
    journal.close()


def test_another_prompt_text_image_sampling_or_attention_has_another_digest() -> None:
    image, other = (Image(PilImage.new("RGB", (8, 8)), name) for name in ("a", "b"))
    prompt = Prompt((Message("user", (image, "Is it red?")),), KEY)
    changed = [replace(prompt, messages=(Message("user", parts),)) for parts in ((other, "Is it red?"), (image, "Is?"))]
    layers = (AttentionRequest((1,)), AttentionRequest((2,)), AttentionRequest((1,), ""), AttentionRequest((1,), "It"))
    prompts = [prompt, *changed, *(replace(prompt, attention=request) for request in layers)]
    digests = {prompt_digest(one, Sampling(max_tokens=1)) for one in prompts}
    assert len(digests | {prompt_digest(prompt, Sampling(max_tokens=2))}) == len(prompts) + 1
    of_older_journals = prompt_digest(Prompt((Message("user", ("Is it red?",)),), LARGE), Sampling(max_tokens=16))
    assert of_older_journals == "f3bf8743eb02d7477a506440291d2381"
