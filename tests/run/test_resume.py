"""A run that is killed is resumed by the same command: real processes, real signals, at random moments."""

import asyncio
import json
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.processes import end, large_pope, lines_of, scripts, start, strike, wait_for_lines

from lmms_eval_mai.contract import Call, CallKey
from lmms_eval_mai.run.journal.journal import Journal

pytestmark = pytest.mark.slow  # some forty processes

ROWS = 240
KILLS = 6


@pytest.fixture(scope="module")
def data(drawn_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_pope(drawn_data, tmp_path_factory.mktemp("crashes"), ROWS)


@pytest.fixture(scope="module")
def model_args(data: Path) -> dict[str, Any]:
    return {"max_open_samples": 12, **scripts(data, "pope_s", ROWS, seconds=0.06)}


@pytest.fixture(scope="module")
def killed(data: Path, model_args: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the journal of a run that was killed after a third of its calls."""
    folder = tmp_path_factory.mktemp("killed")
    process = start(data, folder / "found.json", "pope_s", journal=folder / "journal", **model_args)
    assert strike(process, folder / "journal", after=300, how=signal.SIGKILL)
    return folder / "journal"


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path) -> Path:
    """The only file in `tmp_path / "journal"`: the journal of the killed run."""
    (file,) = shutil.copytree(killed, tmp_path / "journal").iterdir()
    return file


@pytest.fixture(scope="module")
def undisturbed(data: Path, model_args: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("undisturbed") / "found.json"
    process = start(data, output, "pope_s", journal="off", **model_args)
    end(process)
    found: dict[str, Any] = json.loads(output.read_text())
    assert Counter(found["exits"]) == dict.fromkeys(("agree_short", "agree_think", "transfer"), ROWS // 3)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_run_that_is_killed_six_times_has_the_results_of_an_undisturbed_run(
    data: Path, model_args: dict[str, Any], undisturbed: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    journal, output, kept = tmp_path / "journal", tmp_path / "found.json", tmp_path / "kept.jsonl"
    for kill in range(KILLS):
        how = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        process = start(data, output, "pope_s", journal=journal, **model_args)
        # 240 samples make 720 calls and 240 exits, so six signals after at most 140 lines each come before the end.
        assert strike(process, journal, after=len(lines_of(journal)) + rng.randint(2, 140), how=how)
        # 1: KeyboardInterrupt, as always in library use. tests/harness/test_exit_codes.py tests Ctrl-C in the command.
        assert process.exitcode == {signal.SIGKILL: -9, signal.SIGINT: 1, signal.SIGTERM: 143}[how]
        assert not output.exists()
        if kill == 0:
            kept.hardlink_to(next(journal.glob("*.jsonl")))
    process = start(data, output, "pope_s", journal=journal, **model_args)
    end(process)
    assert json.loads(output.read_text()) == undisturbed
    assert list(journal.iterdir()) == []  # a completed run leaves no journal

    keys = Counter(tuple(record["key"]) for record in map(_read, kept.read_text().split("\n")) if "call" in record)
    assert len(keys) == ROWS // 3 * (2 + 3 + 4) and set(keys.values()) == {1}  # no call was made twice
    assert "resuming: " in (log := output.with_suffix(".log").read_text()) and f" of {ROWS} done" in log


def _read(line: str) -> dict[str, Any]:
    """Read a line. The text after the last line is empty."""
    return json.loads(line) if line else {}


def test_same_command_after_a_completed_run_starts_a_new_run(
    data: Path, model_args: dict[str, Any], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("first.json", "second.json"):
        end(start(data, tmp_path / name, "pope_s", journal=tmp_path / "journal", **model_args))
        assert json.loads((tmp_path / name).read_text()) == undisturbed
        assert "resuming" not in (tmp_path / name).with_suffix(".log").read_text()


def test_completed_shorter_run_keeps_the_journal_of_a_longer_run(
    data: Path, model_args: dict[str, Any], undisturbed: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    journal, output, kept = unfinished.parent, tmp_path / "found.json", unfinished.read_text()
    end(start(data, tmp_path / "short.json", "pope_s", limit=8, journal=journal, **model_args))
    assert (tmp_path / "short.json").exists() and unfinished.read_text().startswith(kept[: kept.rindex("\n")])
    end(start(data, output, "pope_s", journal=journal, **model_args))
    assert json.loads(output.read_text()) == undisturbed and list(journal.iterdir()) == []
    assert "resuming: " in output.with_suffix(".log").read_text()


def test_run_of_another_task_has_its_own_journal(
    data: Path, model_args: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    before = unfinished.read_bytes()
    other = {**model_args, **scripts(tmp_path, "pope_e", ROWS)}
    end(start(data, tmp_path / "b.json", "pope_e", journal=unfinished.parent, **other))
    assert (tmp_path / "b.json").exists() and unfinished.read_bytes() == before


def test_run_with_another_argument_names_the_difference_to_the_unfinished_run(
    data: Path, model_args: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    end(start(data, tmp_path / "b.json", "pope_s", journal=unfinished.parent, think="E", **model_args))
    log = (tmp_path / "b.log").read_text()
    assert f"an unfinished run of pope_s is not resumed: think was R and is E. Its journal stays: {unfinished}" in log
    assert list(unfinished.parent.iterdir()) == [unfinished]  # the first run can still be resumed


def test_one_rank_resumes_the_work_of_two(
    data: Path, model_args: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    journal, stem = unfinished.parent, unfinished.name.split("-")[0]
    head, *lines = unfinished.read_text().split("\n")[:-1]
    unfinished.unlink()
    for rank in range(2):
        (journal / f"{stem}-{rank}of2.jsonl").write_text("\n".join([head, *lines[rank::2], ""]))
    end(start(data, tmp_path / "b.json", "pope_s", journal=journal, **model_args))
    calls = sum('"call":' in line for line in lines)
    assert f"({calls} calls" in (tmp_path / "b.log").read_text()
    assert list(journal.iterdir()) == []


def test_wall_time_is_that_of_the_given_samples_on_the_slowest_rank(tmp_path: Path) -> None:
    async def exits(journal: Journal, seconds: dict[int, float]) -> None:
        await journal.add_call(
            Call(CallKey("pope_s", min(seconds), 0, "small", "short"), "Yes", "stop", 1, 0, 1, 0, 0, 0), "", []
        )
        for doc_id, wall_s in seconds.items():
            await journal.add_exit(("pope_s", doc_id, 0), "agree_short", wall_s)

    for rank, seconds in enumerate(({0: 1.0, 1: 2.0}, {2: 4.0, 3: 8.0})):
        journal = Journal(tmp_path, {"mode": "cascade"}, ["pope_s"], rank, world_size=2)
        asyncio.run(exits(journal, seconds))
        journal.close()
    journal = Journal(tmp_path, {"mode": "cascade"}, ["pope_s"])
    samples = [("pope_s", doc_id, 0) for doc_id in range(5)]
    assert (journal.wall_s(samples), journal.wall_s(samples[:3]), journal.done(samples)) == (12.0, 4.0, {*samples[:4]})
    journal.close()


def test_second_run_cannot_write_a_journal_in_use(data: Path, model_args: dict[str, Any], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    first = start(data, tmp_path / "a.json", "pope_s", journal=journal, **model_args)
    assert wait_for_lines(first, journal, 1)
    os.kill(first.pid or 0, signal.SIGSTOP)  # it keeps its journal, however long the second run takes to start
    try:
        second = start(data, tmp_path / "b.json", "pope_s", journal=journal, **model_args)
        end(second)
    finally:
        os.kill(first.pid or 0, signal.SIGCONT)
    assert second.exitcode == 1 and not (tmp_path / "b.json").exists()
    assert "Another run with the same arguments is writing the journal" in (tmp_path / "b.log").read_text()
    end(first)
    assert (tmp_path / "a.json").exists()


def test_full_disk_ends_in_one_sentence_and_the_run_can_be_resumed(
    data: Path, model_args: dict[str, Any], undisturbed: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    journal, output = unfinished.parent, tmp_path / "found.json"
    space = unfinished.stat().st_size + 10_000  # a few dozen lines and a part of the next one
    full = start(data, output, "pope_s", file_limit=space, journal=journal, **model_args)
    end(full)
    assert full.exitcode == 1 and not output.exists() and unfinished.stat().st_size == space
    assert f"The journal {unfinished} cannot be written (File too large)" in (tmp_path / "found.log").read_text()
    end(start(data, output, "pope_s", journal=journal, **model_args))
    assert json.loads(output.read_text()) == undisturbed


def test_unwritable_folder_is_refused_before_anything_starts(
    data: Path, model_args: dict[str, Any], tmp_path: Path
) -> None:
    process = start(data, tmp_path / "found.json", "pope_s", journal="/proc/journal", **model_args)
    end(process)
    assert process.exitcode == 1
    assert "The journal /proc/journal cannot be written" in (tmp_path / "found.log").read_text()
