"""The output folder of the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce.folder import OutputFolder, common_arguments
from lmms_eval_mai.reproduce.plan import Run, read_models, runs
from lmms_eval_mai.reproduce.subjects import Subject

ARGUMENTS: dict[str, Any] = {"model_args": {"max_new_tokens": 64}, "gen_kwargs": {}, "limit": 40, "include_path": None}


@pytest.fixture
def run() -> Run:
    models = read_models([], {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"})
    return runs(models, [Subject("shapes", "shapes", 4, samples=False)], [10])[0]


def test_folder_of_the_same_arguments_is_used_again(tmp_path: Path) -> None:
    folder, arguments = OutputFolder(tmp_path / "out"), common_arguments(**ARGUMENTS)
    folder.check(arguments)
    folder.create(arguments)
    folder.check(arguments)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"limit": 50}, "--limit was 40 and is 50"),
        ({"limit": None}, "--limit was 40 and is not given"),
        ({"gen_kwargs": {"temperature": 0.5}}, "--gen_kwargs temperature was not given and is 0.5"),
        ({"model_args": {"max_new_tokens": 9}}, "--model_args max_new_tokens was 64 and is 9"),
    ],
)
def test_folder_of_other_arguments_is_refused_and_the_difference_is_named(
    tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    folder = OutputFolder(tmp_path)
    folder.create(common_arguments(**ARGUMENTS))
    with pytest.raises(ArgumentError) as error:
        folder.check(common_arguments(**ARGUMENTS | change))
    assert f"have other arguments: {difference}. Give another --output_path" in str(error.value)


def test_folder_with_files_of_another_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "20260101_000000_results.json").write_text("{}")
    with pytest.raises(ArgumentError, match="has files of another command"):
        OutputFolder(tmp_path).check(common_arguments(**ARGUMENTS))
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is not a folder"):
        OutputFolder(tmp_path / "file").check(common_arguments(**ARGUMENTS))


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_broken_record_of_the_arguments_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "reproduce.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"reproduce.json cannot be read"):
        OutputFolder(tmp_path).check(common_arguments(**ARGUMENTS))


def test_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    arguments = common_arguments(**ARGUMENTS)
    OutputFolder(tmp_path).create(arguments)
    file = tmp_path / "reproduce.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version of lmms-eval": "0.6"}))
    with pytest.raises(ArgumentError, match=r"version of lmms-eval was 0\.6 and is "):
        OutputFolder(tmp_path).check(arguments)


def test_run_is_finished_only_when_its_folder_is_in_its_place(tmp_path: Path, run: Run) -> None:
    folder = OutputFolder(tmp_path)
    part = folder.begin(run)
    (part / "half of a file").write_text("")
    assert not folder.is_finished(run)
    part = folder.begin(run)  # the files of a process that was killed are gone
    assert list(part.iterdir()) == []
    (part / "results").write_text("all")
    folder.finish(run)
    assert folder.is_finished(run) and (tmp_path / "models" / "small" / "shapes_s" / "results").read_text() == "all"
    assert not part.exists()
