"""Sizes of checkpoints, and checkpoints with missing files, in a folder and in the cache of the Hugging Face hub."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, constants

from lmms_eval_mai.engines.checkpoints import check_weights, weight_bytes
from lmms_eval_mai.errors import ArgumentError

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

Fill = Callable[..., Path]


def fill(folder: Path, present: tuple[str, ...], index: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint with weight files of 1,000 bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name in present:
        (folder / name).write_bytes(b"0" * 1_000)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


INDEX = {"metadata": {"total_size": 5_000}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}}


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Write a checkpoint `org/model` into the cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def write(present: tuple[str, ...], index: dict[str, Any] | None = None, revision: str = "main") -> Path:
        model = tmp_path / "models--org--model"
        (model / "refs").mkdir(parents=True, exist_ok=True)
        (model / "refs" / revision).write_text(f"commit-of-{revision}")
        return fill(model / "snapshots" / f"commit-of-{revision}", present, index)

    return write


def test_size_is_that_of_the_index_and_without_an_index_that_of_the_files_of_the_revision(
    tmp_path: Path, cached: Fill
) -> None:
    assert weight_bytes(str(fill(tmp_path / "partial download", SHARDS[:1], INDEX))) == 5_000
    copies = ("consolidated.safetensors", "consolidated-00001.safetensors")  # the same weights in another format
    assert weight_bytes(str(fill(tmp_path / "folder", (*SHARDS, *copies)))) == 2_000
    cached(SHARDS[:1], INDEX)
    cached(SHARDS, revision="v2")
    assert (weight_bytes("org/model"), weight_bytes("org/model", "v2")) == (5_000, 2_000)


def test_size_of_a_checkpoint_that_is_not_in_the_cache_is_that_of_the_hub(
    cached: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"model.safetensors": 700, "consolidated.safetensors": 700, "onnx/model.safetensors": 9, "README.md": 5}
    asked = []

    def model_info(self: HfApi, name: str, revision: str | None = None, files_metadata: bool = False) -> Any:
        asked.append((name, revision))
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=one, size=size) for one, size in listed.items()])

    monkeypatch.setattr(HfApi, "model_info", model_info)
    assert weight_bytes("org/model", "v2") == 700 and asked == [("org/model", "v2")]


def test_size_of_an_unknown_checkpoint_is_unknown(tmp_path: Path, cached: Fill) -> None:
    assert weight_bytes("org/model") is None and weight_bytes(str(fill(tmp_path / "empty", ()))) is None


def test_checkpoint_with_missing_weight_files_is_refused_with_their_names(tmp_path: Path, cached: Fill) -> None:
    with pytest.raises(ArgumentError, match=r"large=.* is not complete: model-00002-of-00002.safetensors of its 2 wei"):
        check_weights("large", str(fill(tmp_path / "folder", SHARDS[:1], INDEX)))
    cached((), INDEX)
    with pytest.raises(ArgumentError, match=r"missing from .*commit-of-main"):
        check_weights("small", "org/model")  # the tests run offline


def test_checkpoints_that_are_complete_or_can_still_be_downloaded_are_accepted(
    tmp_path: Path, cached: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_weights("small", str(fill(tmp_path / "folder", SHARDS, INDEX)))
    check_weights("small", str(fill(tmp_path / "one-file", ("model.safetensors",))))
    check_weights("small", "org/model")  # unknown: vLLM has its own message
    cached(SHARDS, INDEX)
    check_weights("small", "org/model")
    cached((), INDEX, revision="v2")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    check_weights("small", "org/model", "v2")
