"""The journal of one rank: what it warns of, what it resumes, and when it is removed."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal import removal as journal_removal
from lmms_eval_mai.run.journal.journal import Journal

OLD_JOURNAL = Path(__file__).with_name("unfinished_journal_of_format_2.jsonl")
"""A scripted run of 12 POPE documents, killed after two samples, as commit ae9735c (2026-11-21) wrote it."""
OLD_NAME = "82969b983faf4219-0of1.jsonl"

R = {"mode": "cascade", "think": "R"}
E = {"mode": "cascade", "think": "E"}
KEY = CallKey("pope_s", 0, 0, "small", "short")
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


def test_unfinished_run_with_another_argument_is_named_and_kept(tmp_path: Path, warnings: list[str]) -> None:
    path = unfinished(tmp_path)
    Journal(tmp_path, E, ["pope_s", "chartqa_s"]).close()
    (warning,) = warnings
    assert "an unfinished run of pope_s is not resumed: think was R and is E." in warning and str(path) in warning
    assert "elete" not in warning and path.exists()


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


_WRITER = """
import asyncio, sys
from pathlib import Path
from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.journal import Journal
journal = Journal(Path(sys.argv[1]), {"mode": "cascade", "think": "R"}, ["pope_s"])
call = Call(CallKey("pope_s", 0, 0, "small", "short"), "Yes", "stop", 1, 0, 1, 0, 0, 0)
asyncio.run(journal.add_call(call, "prompt", []))
print("ready", flush=True)
sys.stdin.read()
"""


def test_run_of_another_process_is_mentioned_only_after_that_process_was_killed(
    tmp_path: Path, warnings: list[str]
) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        Journal(tmp_path, E, ["pope_s"]).close()
        assert warnings == []
        process.kill()
    Journal(tmp_path, E, ["pope_s"]).close()
    assert len(warnings) == 1


_IS_LOCKED = """
import sys
from pathlib import Path
from lmms_eval_mai.run.journal.lock import is_locked
print(is_locked(Path(sys.argv[1])))
"""


def test_run_of_this_process_is_not_mentioned_and_keeps_its_lock(tmp_path: Path, warnings: list[str]) -> None:
    running = Journal(tmp_path, R, ["pope_s"])
    asyncio.run(add_sample(running))
    Journal(tmp_path, E, ["pope_s"]).close()
    seen = subprocess.run([sys.executable, "-c", _IS_LOCKED, str(running.path)], capture_output=True, text=True)
    running.close()
    assert warnings == [] and seen.stdout == "True\n"


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


def test_completed_run_is_removed_at_once_in_library_use(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    journal = Journal(tmp_path, R, ["pope_s"])
    journal.close()
    journal.complete({("pope_s", 1, 0)})
    assert path.exists()  # it holds another sample, of a longer run
    journal.complete({SAMPLE})
    assert not path.exists()


def test_same_run_in_the_same_process_starts_anew_after_its_results_were_written(tmp_path: Path) -> None:
    for written in (False, True):
        unfinished(tmp_path)
        journal = Journal(tmp_path, R, ["pope_s"])
        journal.close()
        journal.complete({SAMPLE}, results_written=lambda written=written: written)  # type: ignore[misc]
        again = Journal(tmp_path, R, ["pope_s"])
        assert again.empty == written
        again.close()


_COMPLETED = """
import sys
from pathlib import Path
from lmms_eval_mai.run.journal.journal import Journal
journal = Journal(Path(sys.argv[1]), {"mode": "cascade", "think": "R"}, ["pope_s"])
journal.close()
journal.complete({("pope_s", 0, 0)}, lambda: sys.argv[2] == "written")
print(journal.path.exists())
"""


@pytest.mark.parametrize(("results", "stays"), [("written", False), ("lost", True)])
def test_completed_run_of_the_command_is_removed_at_its_end_if_the_results_were_written(
    tmp_path: Path, results: str, stays: bool
) -> None:
    path = unfinished(tmp_path)
    done = subprocess.run([sys.executable, "-c", _COMPLETED, tmp_path, results], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
    assert path.exists() == stays


@pytest.fixture
def old_head(tmp_path: Path) -> dict[str, str]:
    """Copy the old journal to its place; return its fingerprint."""
    shutil.copy(OLD_JOURNAL, tmp_path / OLD_NAME)
    head: dict[str, str] = json.loads(OLD_JOURNAL.read_text().split("\n")[0])["fingerprint"]
    return head


_SCORED = """
import sys
from pathlib import Path
from lmms_eval_mai.run.journal.journal import Journal
journal = Journal(Path(sys.argv[1]), {"mode": "cascade", "think": "R"}, ["pope_s"])
journal.close()
journal.complete({("pope_s", 0, 0)}, lambda: True)
print("closed", flush=True)
sys.stdin.read()  # lmms-eval scores
"""


def test_completed_run_does_not_remove_its_journal_under_a_second_run_of_the_same_command(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    command = [sys.executable, "-c", _SCORED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "closed\n"
        second = Journal(tmp_path, R, ["pope_s"])
        first.communicate("")
        assert path.exists() and second.calls == 1
        second.close()
        second.complete({SAMPLE})
    assert not path.exists()


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


def test_failed_opening_of_a_journal_leaves_no_open_file_and_no_lock(tmp_path: Path) -> None:
    running = Journal(tmp_path, R, ["pope_s"])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JournalError):
        Journal(tmp_path, R, ["pope_s"])
    seen = subprocess.run([sys.executable, "-c", _IS_LOCKED, str(running.path)], capture_output=True, text=True)
    assert (len(os.listdir("/proc/self/fd")), seen.stdout) == (before, "True\n")
    running.close()


def test_unfinished_journal_with_older_templates_is_not_resumed_and_the_user_is_warned(
    tmp_path: Path, old_head: dict[str, str], warnings: list[str]
) -> None:
    # Commit ae9735c stored a hash of the file with the templates; now it is a hash of the templates themselves.
    Journal(tmp_path, {**old_head, "templates": "0123456789abcdef"}, ["pope_s"]).close()
    (warning,) = warnings
    assert "is not resumed: templates was 0cdce0e07aed637a and is 0123456789abcdef." in warning
    assert (tmp_path / OLD_NAME).read_text() == OLD_JOURNAL.read_text()


def test_journal_of_format_2_by_an_older_version_can_still_be_read(tmp_path: Path, old_head: dict[str, str]) -> None:
    journal = Journal(tmp_path, old_head, ["pope_s"])
    assert journal.path.name == OLD_NAME
    lines = [json.loads(line) for line in OLD_JOURNAL.read_text().splitlines()]
    calls = [line for line in lines if "call" in line]
    assert journal.calls == len(calls) > 0 and len(journal.done([(*SAMPLE[:1], n, 0) for n in range(12)])) == 2
    for line in calls:
        found = journal.find(CallKey(*line["key"]), line["prompt"])
        assert found is not None and found.text == line["call"]["text"]
    journal.close()
