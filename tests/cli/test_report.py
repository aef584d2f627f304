"""The command `lmms-eval-mai report`: tables and the page."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE, Answers, World
from support.own_command import run_command

from lmms_eval_mai.method.files import load


def test_the_summary_is_printed_with_the_chosen_tables_and_ends_with_what_is_missing(
    tmp_path: Path, capsys: Any
) -> None:
    POPE.write(tmp_path / "a", "mai")
    POPE.write(tmp_path / "b", "full_rt")
    folders = (tmp_path / "a", tmp_path / "b")
    code, out, err = run_command(capsys, "report", *folders)
    assert (code, err) == (0, "")
    assert out.startswith("Methods: ") and "Table 10" not in out and "POPE: the paper has 9000 documents" in out
    assert "\nBy exit: " in out and "\nDifferences: " in out
    _, more, _ = run_command(capsys, "report", *folders, "--tables", "8,10")
    assert "Table 10: multi-agent inference (MAI)" in more and "Table 8: " in more and "Table 6" not in more


def test_json_on_the_terminal_is_json_also_beside_a_page(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "mai")
    page = tmp_path / "new" / "report.html"
    code, out, err = run_command(capsys, "report", tmp_path, "--format", "json", "--html", page)
    assert code == 0 and json.loads(out)["tables"]["methods"]["rows"] and str(page) in err
    assert "<!doctype html>" in page.read_text()


def test_a_table_without_a_row_is_named_with_the_command_that_makes_it(tmp_path: Path, capsys: Any) -> None:
    World("shapes", POPE.documents, small="a/tiny", large="a/big").write(tmp_path, "mai")
    _, out, _ = run_command(capsys, "report", tmp_path, "--tables", "8,10,11")
    assert "\nTable 10: " in out and "compare --tables 8`" in out
    (gap,) = [line for line in out.replace("\n  ", " ").splitlines() if line.startswith("Table 11: ")]
    assert "a/tiny" in gap and "a/big" in gap and "calls.py --pair" in gap


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_silently_and_a_full_disk_with_one_sentence(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    command = [sys.executable, "-m", "lmms_eval_mai", "report", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        assert piped.stdout is not None and piped.stderr is not None
        piped.stdout.close()
        assert (piped.stderr.read(), piped.wait()) == (b"", 128 + signal.SIGPIPE)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "No space left" in done.stderr


OWN = """
- ask: large.simple
- stop: {exit: confident, answer: large.simple, sure: large.simple}
- ask: [small.simple, large.think]
- stop: {exit: both, answer: large.think, agree: [small.simple, large.think]}
- ask: small.think
- {ask: large.transfer, of: small.think}
- stop: {exit: transferred, answer: large.transfer}
"""
"""A method of one's own."""


@pytest.mark.parametrize("name", ["mine", "own_thinking"])
def test_a_replay_of_a_method_has_the_numbers_of_its_run(tmp_path: Path, capsys: Any, name: str) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    method = load(tmp_path / "mine.yaml" if name == "mine" else name)
    chance = random.Random(3)
    given = [[chance.choice(["red", "blue", "green", ""]) for _ in range(5)] for _ in range(40)]
    documents = [Answers("red", *answers, probability=chance.uniform(0.2, 1)) for answers in given]
    world = World("shapes", documents, min_confidence=0.6)
    for other, suffix in (("large", "s"), ("large", "r"), ("full_rt", "s"), ("small", "s")):
        world.write(tmp_path / "runs" / other / suffix, other, suffix)
    world.write(tmp_path / "mine", method, time="20260102_000000")
    options = ("--format", "json", "--tables", "10")
    threshold = ("--min_confidence", "0.6") if method.needs_threshold else ()
    replayed = ("--method", tmp_path / "mine.yaml" if name == "mine" else name, *threshold)
    found = []
    for arguments in ((tmp_path / "runs", *replayed), (tmp_path / "runs", tmp_path / "mine")):
        code, out, err = run_command(capsys, "report", *arguments, *options)
        assert (code, err) == (0, "")
        found.append(json.loads(out)["tables"])
    by_replay, by_run = found
    exits = [world.walk(one, method, "s")[0] for one in documents]
    assert {row["exit"]: row["n"] for row in by_run["exits"]["rows"]} == {
        exit: exits.count(exit) for exit in method.exits
    }
    run, replay = (tables["methods"]["rows"][-1] for tables in (by_run, by_replay))
    assert run.pop("wall_s") != replay.pop("wall_s") == "replay"  # only a run has times
    del by_run["methods"]["notes"], by_replay["methods"]["notes"]  # they explain the word
    assert by_replay == by_run
