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
    parts = {
        "text": lambda name: "language_model.layers" in name or "language_model.norm" in name,
        "merger": lambda name: "merger" in name,
        "vision": lambda name: "visual" in name and "merger" not in name and "pos_embed" not in name,
        "output": lambda name: "lm_head" in name,
    }
    assert {part: found[part] for part in parts} == {
        part: sum(size for name, size in sizes.items() if of_part(name)) for part, of_part in parts.items()
    }


def test_a_model_without_a_checkpoint_that_transformers_knows_is_not_counted(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    assert parameters(EngineConfig("small", "vllm", str(tmp_path))) is None
    assert parameters(EngineConfig("small", "openai", "http://localhost:1/v1")) is None
