"""The command `lmms-eval-mai report`: tables, the page, and the images in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from support.folders import POPE, Answers, World
from support.own_command import run_command

from lmms_eval_mai.cli.report import load_images
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.evidence import Evidence

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


def test_html_writes_the_page_beside_the_tables(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    file = tmp_path / "new" / "report.html"
    _, tables, _ = run_command(capsys, "report", tmp_path)
    code, out, err = run_command(capsys, "report", tmp_path, "--html", file)
    assert (code, out, err) == (0, f"{tables}\nWrote the page to {file}.\n", "")
    assert "On POPE (n = 4), MAI 8B + 2B-R scores" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--images"], "--images has no effect without --html"),
        (["."], "there is no run of lmms-eval."),
        (["runs", "--output", "file/x.md"], "--output file/x.md cannot be written"),
    ],
)
def test_what_cannot_be_made_ends_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: Any, monkeypatch: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "runs" in arguments:
        POPE.write(tmp_path / "runs", "cascade")
    (tmp_path / "file").write_text("")
    code, out, err = run_command(capsys, "report", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("lmms-eval-mai: ") and message in err


# --- images ----------------------------------------------------------------------------------------------


def evidence(golds: list[str], folder: Path) -> Evidence:
    World("shapes", [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "cascade")
    return build.evidence([folder])


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


def test_each_document_gets_the_image_of_its_task(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence(golds, tmp_path))
    assert images.gaps == []
    assert sorted(images.of["shapes"]) == [0, 1, 2, 3, 4] and len(images.data) == 5


def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence([*golds[:4], "something else"], tmp_path))
    assert images.gaps == ["shapes has no images: document 4 of task shapes_s has another gold answer than in the run."]
