"""The command `lmms-eval-mai report`: tables and the page."""

import json
import random
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
    _, more, _ = run_command(capsys, "report", *folders, "--tables", "8,10")
    assert "Table 10: multi-agent inference (MAI)" in more and "Table 8: " in more and "Table 6" not in more


def test_json_on_the_terminal_is_json_also_beside_a_page(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "mai")
    page = tmp_path / "new" / "report.html"
    code, out, err = run_command(capsys, "report", tmp_path, "--format", "json", "--html", page)
    assert code == 0 and json.loads(out)["tables"]["methods"]["rows"] and str(page) in err
    assert "<!doctype html>" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--images"], "--images has no effect without --html"),
        (["."], "there is no run of lmms-eval."),
        (["runs", "--tables", "9"], "--tables 9 is invalid"),
        (["runs", "--tables", "rules"], "--min_confidence"),
        (["runs", "--method", "mai_confidence", "--min_confidence", "0.9", "2"], "--min_confidence 2"),
        (["runs", "--html", "file/x.html"], "--html file/x.html cannot be written"),
    ],
)
def test_what_cannot_be_made_ends_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: Any, monkeypatch: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "runs" in arguments:
        POPE.write(tmp_path / "runs", "mai")
    (tmp_path / "file").write_text("")
    code, _, err = run_command(capsys, "report", *arguments)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("lmms-eval-mai: ") and message in err


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
    row = by_run["methods"]["rows"][-1]
    exits = [world.walk(one, method, "s")[0] for one in documents]
    assert [row[exit] for exit in method.exits] == pytest.approx([2.5 * exits.count(exit) for exit in method.exits])
    assert row["wall_s"] is not None  # only a run has times
    row["wall_s"] = None
    assert by_replay == by_run
