"""The output folder of the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce import printing
from lmms_eval_mai.reproduce.folder import OutputFolder, common_arguments
from lmms_eval_mai.reproduce.plan import Options, Run, Subject, read_models, runs

MODEL_ARGS = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}


def common(pairs: tuple[str, ...] = (), **change: Any) -> dict[str, str]:
    given: dict[str, Any] = {"model_args": {"max_new_tokens": 64}, "gen_kwargs": {}, "limit": 40, "include_path": None}
    given |= change
    models = read_models(pairs, {} if pairs else MODEL_ARGS)
    options = Options(limit=given["limit"], include_path=given["include_path"])
    return common_arguments(models, given["model_args"], given["gen_kwargs"], options)


@pytest.fixture
def run() -> Run:
    return runs(read_models([], MODEL_ARGS), [Subject("shapes", "shapes", 4)], [10])[0]


def test_folder_of_the_same_arguments_is_used_again(tmp_path: Path) -> None:
    folder, arguments = OutputFolder(tmp_path / "out"), common()
    folder.check(arguments)
    folder.create(arguments)
    folder.check(arguments)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"limit": 50}, "--limit was 40 and is 50"),
        ({"limit": None}, "--limit was 40 and is not given"),
        ({"include_path": "more"}, "--include_path was not given and is more"),
        ({"gen_kwargs": {"temperature": 0.5}}, "--gen_kwargs temperature was not given and is 0.5"),
        ({"model_args": {"max_new_tokens": 9}}, "--model_args max_new_tokens was 64 and is 9"),
    ],
)
def test_folder_of_other_arguments_is_refused_and_the_difference_is_named(
    tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    folder = OutputFolder(tmp_path)
    folder.create(common())
    with pytest.raises(ArgumentError) as error:
        folder.check(common(**change))
    assert f"have other arguments: {difference}. Give another --output_path" in str(error.value)


def test_folder_of_arguments_that_change_no_answer_and_of_more_pairs_is_used_again(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    first = common(("qwen3vl-2b-4b",))
    folder.create(first)
    more = common(
        ("qwen3vl-2b-8b",),
        model_args={"max_new_tokens": 64, "max_open_samples": 9, "large_gpu_memory_utilization": 0.5, "max_errors": 2},
    )
    folder.check(more)
    folder.create(more)
    folder.check(first)
    kept = json.loads((tmp_path / "reproduce.json").read_text())["arguments"]
    assert {"pair qwen3vl-2b-4b", "pair qwen3vl-2b-8b"} < kept.keys()


def test_pair_of_the_same_name_with_other_models_is_refused(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out")
    for model in ("org/one", "org/other"):
        (tmp_path / "mine.yaml").write_text(f"small: org/small\nlarge: {model}\n")
        found = common((str(tmp_path / "mine.yaml"),))
        if model == "org/one":
            folder.create(found)
    with pytest.raises(ArgumentError, match="pair mine was org/small and org/one and is org/small and org/other"):
        folder.check(found)


def test_secrets_are_not_written(tmp_path: Path) -> None:
    secrets = {"api_key": "sk-123", "small": "http://me:sk-123@host/v1"}
    OutputFolder(tmp_path).create(common(model_args=secrets))
    text = (tmp_path / "reproduce.json").read_text()
    assert "sk-123" not in text and "host/v1" in text


def test_folder_with_files_of_another_command_is_refused(tmp_path: Path) -> None:
    (tmp_path / "20260101_000000_results.json").write_text("{}")
    with pytest.raises(ArgumentError, match="has files of another command"):
        OutputFolder(tmp_path).check(common())
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is not a folder"):
        OutputFolder(tmp_path / "file").check(common())


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_broken_record_of_the_arguments_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "reproduce.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"reproduce.json cannot be read"):
        OutputFolder(tmp_path).check(common())


def test_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    arguments = common()
    OutputFolder(tmp_path).create(arguments)
    file = tmp_path / "reproduce.json"
    record = json.loads(file.read_text())
    record["arguments"]["version of lmms-eval"] = "0.6"
    file.write_text(json.dumps(record))
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


def test_list_of_runs_names_those_that_are_finished(tmp_path: Path) -> None:
    found = runs(read_models([], MODEL_ARGS), [Subject("shapes", "shapes", 1234)], [10])
    folder = OutputFolder(tmp_path)
    for finished in found[:3]:
        folder.begin(finished)
        folder.finish(finished)
    assert printing.plan(found, folder).splitlines() == [
        "models/small/shapes_s     small, S, 1,234 documents, finished",
        "models/small/shapes_r     small, R, 1,234 documents, finished",
        "models/large/shapes_s     large, S, 1,234 documents, finished",
        "models/transfer/shapes_s  Full RT, 1,234 documents",
        "models/cascade/shapes_s   MAI, 1,234 documents",
    ]
