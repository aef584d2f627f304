"""The command `lmms-eval-mai estimate`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE
from support.own_command import run_command
from support.profiles import TINY

from lmms_eval_mai.times.profile import write


def test_the_papers_profile_is_the_default(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    code, out, err = run_command(capsys, "estimate", tmp_path)
    assert (code, err) == (0, "")
    assert "## Table 11: estimated time of the calls" in out and "NVIDIA H100 (paper)" in out
    assert "MAI 8B + 2B-R" in out and "* The time in full batches needs profiles with batch sizes" in out


def test_profiles_of_files_and_the_format_json(tmp_path: Path, capsys: Any) -> None:
    dataclasses.replace(POPE, small="small", large="large").write(tmp_path / "run", "cascade")
    files = [write(dataclasses.replace(TINY, name=name, model=name), tmp_path) for name in ("small", "large")]
    output = tmp_path / "estimate.json"
    code, out, _ = run_command(
        capsys, "estimate", tmp_path / "run", "--profile", *files, "--format", "json", "--output", output
    )
    found = json.loads(output.read_text())
    assert (code, out) == (0, f"Wrote 3 tables to {output}.\n")
    assert [table["key"] for table in found["tables"]] == ["table-11", "times-by-stage", "throughput"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--profile", "no.json"), "The profile no.json cannot be read"),
        (("--small", "3B"), "--small 3B is not a profile"),
        (("no-such-folder",), "no-such-folder does not exist."),
    ],
)
def test_wrong_arguments_end_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: Any, arguments: tuple[str, ...], sentence: str
) -> None:
    POPE.write(tmp_path, "cascade")
    code, out, err = run_command(capsys, "estimate", tmp_path, *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"lmms-eval-mai: {sentence}")
