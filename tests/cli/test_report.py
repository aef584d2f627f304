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
from lmms_eval_mai.reports.runs import Runs


def test_the_summary_is_printed_with_the_chosen_tables_and_ends_with_what_is_missing(
    tmp_path: Path, capsys: Any
) -> None:
    POPE.write(tmp_path / "a", "cascade")
    POPE.write(tmp_path / "b", "transfer")
    folders = (tmp_path / "a", tmp_path / "b")
    code, out, err = run_command(capsys, "report", *folders)
    assert (code, err) == (0, "")
    assert out.startswith("Methods: ") and "Table 10" not in out and "POPE: the paper has 9000 documents" in out
    _, more, _ = run_command(capsys, "report", *folders, "--tables", "8,10")
    assert "Table 10: multi-agent inference (MAI)" in more and "Table 8: " in more and "Table 6" not in more


def test_json_on_the_terminal_is_json_also_beside_a_page(tmp_path: Path, capsys: Any) -> None:
    POPE.write(tmp_path, "cascade")
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
        (["runs", "--html", "file/x.html"], "--html file/x.html cannot be written"),
    ],
)
def test_what_cannot_be_made_ends_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: Any, monkeypatch: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if "runs" in arguments:
        POPE.write(tmp_path / "runs", "cascade")
    (tmp_path / "file").write_text("")
    code, _, err = run_command(capsys, "report", *arguments)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("lmms-eval-mai: ") and message in err


# --- images ----------------------------------------------------------------------------------------------


def runs(golds: list[str], folder: Path) -> Runs:
    World("shapes", [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "cascade")
    return build.read([folder])


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


def test_each_document_gets_the_image_of_its_task(golds: list[str], tmp_path: Path) -> None:
    images = load_images(runs(golds, tmp_path))
    assert images.gaps == []
    assert sorted(images.of["shapes"]) == [0, 1, 2, 3, 4] and len(images.data) == 5


def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    images = load_images(runs([*golds[:4], "something else"], tmp_path))
    assert images.gaps == ["shapes has no images: document 4 of task shapes_s has another gold answer than in the run."]
