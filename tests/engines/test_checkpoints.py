"""Checkpoints: those that do not exist, their identity and their size."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, constants

from lmms_eval_mai.engines.checkpoints import check_checkpoint, checkpoint_identity, weight_bytes
from lmms_eval_mai.errors import ArgumentError

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def fill(folder: Path, *files: str, total_size: int | None = None) -> Path:
    """Write a checkpoint with weight files of 1,000 bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    for name in files:
        (folder / name).write_bytes(b"0" * 1_000)
    if total_size is not None:
        index = {"metadata": {"total_size": total_size}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_only_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    mistral = fill(tmp_path / "mistral", "consolidated.safetensors")
    (mistral / "config.json").rename(mistral / "params.json")
    for model in (str(mistral), "s3://bucket/folder/model", "gs://bucket/model", "org/model", "model"):
        check_checkpoint("small", model)
    for model in (f"{tmp_path}/absent", "./absent", "~/absent-checkpoint", "some/relative/path"):
        with pytest.raises(ArgumentError, match="does not exist"):
            check_checkpoint("small", model)


def test_size_is_that_of_the_index_else_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert weight_bytes(str(fill(tmp_path / "partial download", SHARDS[0], total_size=5_000))) == 5_000
    damaged = fill(tmp_path / "damaged index", *SHARDS)
    (damaged / "model.safetensors.index.json").write_bytes('{"é'.encode()[:-1])
    assert weight_bytes(str(damaged)) == 2_000
    copies = ("consolidated.safetensors", "consolidated-00001.safetensors")  # the same weights in another format
    assert weight_bytes(str(fill(tmp_path / "folder", *SHARDS, *copies))) == 2_000
    assert weight_bytes(str(fill(tmp_path / "mistral", copies[0]))) == 1_000
    assert weight_bytes(str(fill(tmp_path / "empty"))) is None
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--model"
    for revision, files in (("main", SHARDS[:1]), ("v2", SHARDS)):
        fill(model / "snapshots" / f"commit-of-{revision}", *files)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / revision).write_text(f"commit-of-{revision}")
    assert [weight_bytes("org/model", revision) for revision in (None, "v2", "v3")] == [1_000, 2_000, None]
    assert checkpoint_identity("org/model", "v2") == "commit-of-v2"
    assert weight_bytes("s3://bucket/folder/model") is None


def test_identity_of_a_folder_changes_with_its_files_but_not_with_its_notes(tmp_path: Path) -> None:
    folder = fill(tmp_path / "folder", *SHARDS)
    before = checkpoint_identity(str(folder), None)
    (folder / "README.md").write_text("notes")
    assert checkpoint_identity(str(folder), None) == before
    (folder / SHARDS[0]).write_bytes(b"1" * 1_000)
    assert checkpoint_identity(str(folder), None) != before


def test_size_of_a_checkpoint_that_is_not_on_this_machine_is_that_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weight_bytes("org/model", "v2") is None  # the tests run offline
    listed = {"model.safetensors": 700, "consolidated.safetensors": 700, "onnx/model.safetensors": 9, "README.md": 5}
    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in listed.items()]
    monkeypatch.setattr(HfApi, "model_info", lambda *arguments, **named: SimpleNamespace(siblings=siblings))
    assert weight_bytes("org/model", "v2") == 700
