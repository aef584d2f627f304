"""The numbers of parameters that reports use to estimate compute."""

from pathlib import Path

import pytest
from safetensors import safe_open

import lmms_eval_mai
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.parameters import parameters

DEMO = Path(lmms_eval_mai.__file__).parent / "pairs" / "demo"


@pytest.mark.parametrize("side", ["small", "large"])
def test_the_parts_add_up_to_the_weights_of_the_checkpoint(side):
    found = parameters(EngineConfig(side, "vllm", str(DEMO / side)))
    with safe_open(DEMO / side / "model.safetensors", "pt") as file:
        sizes = {name: file.get_tensor(name).numel() for name in file.keys()}  # noqa: SIM118
    tables = sum(size for name, size in sizes.items() if "embed_tokens" in name)
    assert found["text"] + found["vision"] + found["output"] == sum(sizes.values()) - tables
    assert found["vision"] == sum(size for name, size in sizes.items() if "visual" in name)


def test_the_model_behind_an_endpoint_is_not_known():
    assert parameters(EngineConfig("small", "openai", "http://localhost:1/v1")) is None


def test_a_checkpoint_that_transformers_does_not_know_is_not_counted(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    assert parameters(EngineConfig("small", "vllm", str(tmp_path))) is None
