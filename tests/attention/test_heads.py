"""The states of single heads, from those of a layer."""

import numpy as np
import pytest
import torch

from lmms_eval_mai.attention.heads import HeadReader, layer_states
from lmms_eval_mai.contract import EngineConfig
from lmms_eval_mai.engines.transformers.attention import LayerAttention, probabilities
from lmms_eval_mai.errors import ArgumentError


def test_heads_that_share_keys_get_the_same_keys_and_values_and_their_own_weights() -> None:
    # 4 heads, 2 of each pair of keys and values; 9 tokens of context, 5 of them are the thinking.
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(shape, generator=generator) for shape in ((4, 8), (2, 9, 8), (2, 9, 8)))
    weights = probabilities(query, keys, 0.3)[:, 2:7]
    found = layer_states(LayerAttention(weights, query, keys[:, 2:7], values[:, 2:7], 0.3))
    assert found.values.shape == found.keys.shape == (4, 5, 8)
    assert np.array_equal(found.keys[0], found.keys[1]) and not np.array_equal(found.keys[1], found.keys[2])
    assert np.array_equal(found.values[3], values[1, 2:7].double().numpy())
    # Softmax over the thinking alone is the attention on the thinking, normalised.
    assert found.own_weights == pytest.approx(found.weights / found.weights.sum(axis=-1, keepdims=True), rel=1e-5)


def test_thinking_without_any_attention_has_weights_of_its_own() -> None:
    keys = torch.tensor([[[-400.0], [-401.0]]])
    found = layer_states(LayerAttention(torch.zeros(1, 2), torch.ones(1, 1), keys, keys, 1.0))
    assert found.weights.sum() == 0
    assert found.own_weights[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])


@pytest.mark.parametrize("kind", ["openai", "scripted"])
def test_engine_without_a_checkpoint_is_refused(kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"large_engine={kind} has no checkpoint"):
        HeadReader(EngineConfig("large", kind, "somewhere"))
