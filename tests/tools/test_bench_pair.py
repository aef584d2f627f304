"""The pair with random weights, for measurements of time on a CPU."""

import struct
from pathlib import Path

import pytest
from make_bench_pair import make_pair

from lmms_eval_mai.run.config import parse


def parameters(folder: Path) -> int:
    """Return the number of parameters, from the size of the weights: two bytes each, after a header."""
    file = folder / "model.safetensors"
    header = struct.unpack("<Q", file.read_bytes()[:8])[0]
    return (file.stat().st_size - 8 - header) // 2


@pytest.mark.slow
def test_the_checkpoints_have_the_proportions_of_the_real_models_and_are_a_pair(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    config = parse({"pair": str(make_pair(tmp_path))})
    small, large = Path(config.small.model), Path(config.large.model)
    assert parameters(small) == pytest.approx(20e6, rel=0.05) and parameters(large) == pytest.approx(80e6, rel=0.05)
    for folder, layers in ((small, (28, 24)), (large, (36, 27))):
        read = AutoConfig.from_pretrained(folder)
        assert (read.text_config.num_hidden_layers, read.vision_config.depth) == layers
        assert len(AutoTokenizer.from_pretrained(folder)) == read.text_config.vocab_size == 14_336
