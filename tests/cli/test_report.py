"""The command `lmms-eval-mai report`."""

import json
from pathlib import Path
from typing import Any

from support.folders import POPE
from support.own_command import run_command

from lmms_eval_mai.cli.report import FORMATS
from lmms_eval_mai.reports import formats

MISSING = (
    "* POPE: the paper has 9000 documents and these runs 4, so the differences from the paper are between different "
    "documents."
)


def test_the_tables_are_printed_and_end_with_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path / "a", "cascade")
    POPE.write(tmp_path / "b", "transfer")
    code, out, err = run_command(capsys, "report", tmp_path / "a", tmp_path / "b")
    assert (code, err) == (0, "")
    assert "## Table 10: multi-agent inference (MAI)" in out and "## Table 8: " in out
    assert out.endswith(f"{MISSING}\n")


def test_output_writes_a_file_in_a_new_folder_and_tells_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    file = tmp_path / "new" / "report.json"
    code, out, err = run_command(capsys, "report", tmp_path, "--format", "json", "--output", file)
    found = json.loads(file.read_text())
    assert (code, out) == (0, f"Wrote {len(found['tables'])} tables to {file}.\n")
    assert err == "".join(f"lmms-eval-mai: {gap}\n" for gap in found["gaps"])


def test_html_writes_the_page_instead_of_the_tables(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    file = tmp_path / "new" / "report.html"
    code, out, err = run_command(capsys, "report", tmp_path, "--html", file)
    assert (code, out) == (0, f"Wrote the page to {file}.\n")
    assert f"lmms-eval-mai: {MISSING.removeprefix('* ')}" in err
    assert "On POPE (n = 4), MAI 8B + 2B-R scores" in file.read_text()
    code, out, _ = run_command(capsys, "report", tmp_path, "--html", file, "--format", "csv")
    assert code == 0 and out.startswith("table,row,column") and out.endswith(f"Wrote the page to {file}.\n")


def test_images_need_a_page(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    code, out, err = run_command(capsys, "report", tmp_path, "--images")
    assert (code, out) == (
        1,
        "",
    ) and err == "lmms-eval-mai: --images has no effect without --html: give --html FILE too.\n"


def test_a_folder_without_runs_ends_with_one_line_and_exit_code_1(tmp_path: Path, capsys: Any) -> None:
    code, out, err = run_command(capsys, "report", tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"lmms-eval-mai: {tmp_path}: there is no run of lmms-eval.")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    (tmp_path / "file").write_text("")
    code, _, err = run_command(capsys, "report", tmp_path, "--output", tmp_path / "file" / "x.md")
    assert code == 1 and "cannot be written" in err


def test_the_formats_are_those_of_the_package() -> None:
    assert list(FORMATS) == list(formats.FORMATS)
