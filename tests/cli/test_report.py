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


def test_images_need_a_page(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    code, out, err = run_command(capsys, "report", tmp_path, "--images")
    assert (code, out) == (1, "") and "--images has no effect without --html" in err


def test_a_folder_without_runs_ends_with_one_line_and_exit_code_1(tmp_path: Path, capsys: Any) -> None:
    code, out, err = run_command(capsys, "report", tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"lmms-eval-mai: {tmp_path}: there is no run of lmms-eval.")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
    (tmp_path / "file").write_text("")
    code, _, err = run_command(capsys, "report", tmp_path, "--output", tmp_path / "file" / "x.md")
    assert code == 1 and "cannot be written" in err


# --- images ----------------------------------------------------------------------------------------------


def evidence(golds: list[str], folder: Path, benchmark: str = "shapes") -> Evidence:
    World(benchmark, [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "cascade")
    return build.evidence([folder])[0]


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


@pytest.mark.slow
def test_each_document_gets_the_image_of_its_task(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence(golds, tmp_path))
    assert images.gaps == []
    assert sorted(images.of["shapes"]) == [0, 1, 2, 3, 4] and len(images.data) == 5


@pytest.mark.slow
def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence([*golds[:4], "something else"], tmp_path))
    assert images.gaps == ["shapes has no images: document 4 of task shapes_s has another gold answer than in the run."]


@pytest.mark.slow
def test_a_task_that_cannot_be_loaded_is_a_sentence(tmp_path: Path) -> None:
    images = load_images(evidence(["yes"], tmp_path, "unknown"))
    assert len(images.gaps) == 1 and images.gaps[0].startswith(
        "unknown has no images: unknown_s is unknown to lmms-eval."
    )
