"""The command `lmms-eval-mai report`: tables and the page."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE, World
from support.own_command import run_command


def test_the_summary_is_printed_with_the_chosen_tables_and_ends_with_what_is_missing(
    tmp_path: Path, capsys: Any
) -> None:
    POPE.write(tmp_path / "a", "mai")
    POPE.write(tmp_path / "b", "full_rt")
    code, out, err = run_command(capsys, "report", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (0, "")
    assert out.startswith("Methods: ") and "Table 10" not in out and "POPE: the paper has 9000 documents" in out
    assert "\nBy exit: " in out and "\nDifferences: " in out
    _, more, _ = run_command(capsys, "report", tmp_path, "--tables", "8,10")
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
def test_a_closed_pipe_ends_a_command_silently(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    command = [sys.executable, "-m", "lmms_eval_mai", "report", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        assert piped.stdout is not None and piped.stderr is not None
        piped.stdout.close()
        assert (piped.stderr.read(), piped.wait()) == (b"", 128 + signal.SIGPIPE)


def test_a_method_of_ones_own_and_each_threshold_are_rows_as_of_runs(tmp_path: Path, capsys: Any) -> None:
    """`tests/analysis/test_replay.py` compares their samples with those of runs."""
    (tmp_path / "mine.yaml").write_text(
        "[{ask: large.simple}, {stop: {exit: sure, answer: large.simple, sure: large.simple}},"
        " {ask: small.think}, {stop: {exit: thought, answer: small.think}}]"
    )
    for method, suffix in (("mai", "s"), ("full_rt", "s"), ("large", "r")):
        POPE.write(tmp_path / method, method, suffix)
    options = ("--method", tmp_path / "mine.yaml", "own_thinking", "--min_confidence", "0.6", "0.7")
    code, out, err = run_command(capsys, "report", tmp_path, *options, "--format", "json", "--tables", "10")
    assert (code, err) == (0, "")
    tables = json.loads(out)["tables"]
    names = [row["method"] for row in tables["methods"]["rows"] if row["wall_s"] == "replay"]
    for name in ("mine", "own thinking"):
        assert sum(one.startswith(f"{name} (min_confidence=0.") for one in names) == 2, names
    assert {"sure", "thought"} <= {row["exit"] for row in tables["exits"]["rows"]}
