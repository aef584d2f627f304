"""Checkpoints with random weights, which are made on first use."""

import os
import struct
from pathlib import Path

import pytest

from lmms_eval_mai.engines import random_checkpoints
from lmms_eval_mai.errors import ArgumentError


def parameters(folder: Path) -> int:
    """Return the number of parameters, from the size of the weights: two bytes each, after a header."""
    file = folder / "model.safetensors"
    header = struct.unpack("<Q", file.read_bytes()[:8])[0]
    return (file.stat().st_size - 8 - header) // 2


@pytest.mark.slow
def test_a_checkpoint_is_made_once_and_has_the_size_of_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig, AutoTokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(random_checkpoints.path_of("random:qwen3vl-2b"))
    assert parameters(folder) == pytest.approx(20e6, rel=0.05)
    config = AutoConfig.from_pretrained(folder)
    assert (config.text_config.num_hidden_layers, config.vision_config.depth) == (28, 24)
    assert len(AutoTokenizer.from_pretrained(folder)) == config.text_config.vocab_size == 14_336
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert random_checkpoints.path_of("random:qwen3vl-2b") == str(folder)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert [file for file in folder.parent.iterdir() if file != folder] == []


def test_an_unknown_name_is_refused_with_a_similar_one() -> None:
    with pytest.raises(ArgumentError, match=r"random:qwen3vl-2d is unknown.*Did you mean qwen3vl-2b"):
        random_checkpoints.path_of("random:qwen3vl-2d")


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(file))
    with pytest.raises(ArgumentError, match=rf"cannot be written to {file}/.*set XDG_CACHE_HOME"):
        random_checkpoints.path_of("random:qwen3vl-8b")
