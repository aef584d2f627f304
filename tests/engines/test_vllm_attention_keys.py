"""Keys are read from vLLM's KV cache as they were written, in every arrangement of the cache."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmms_eval_mai.engines.vllm.attention_keys import KeyReader, UnreadableCache

pytestmark = pytest.mark.usefixtures("vllm")  # in a process that has imported vLLM

BLOCKS, HEADS = [7, 2, 5], 2


def layer(cache: torch.Tensor, impl: Any, backend: Any = None, **fields: Any) -> Any:
    """A layer with the attributes of vLLM's `Attention` that are read. `cache`: [block, head, token, key and value]."""
    usual = {
        "attn_backend": backend or SimpleNamespace(forward_includes_kv_cache_update=False, get_name=lambda: "FAKE"),
        "head_size_v": cache.shape[-1] // 2,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
        "kv_sharing_target_layer_name": None,
        "has_sink": False,
        "layer_name": "model.layers.0.attn",
        "_k_scale_float": 1.0,
        "_v_scale_float": 1.0,
    }
    own = {"kv_cache": cache, "impl": impl, "num_kv_heads": cache.shape[1], "head_size": cache.shape[-1] // 2}
    return SimpleNamespace(**{**usual, **own, **fields})


class Flash:
    """Writes keys like vLLM's backends for GPUs: FlashAttention, FlashInfer, Triton and FlexAttention."""

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        size = cache.shape[2]
        key_cache, value_cache = cache.transpose(1, 2).split(layer.head_size, dim=-1)
        key_cache[slots // size, slots % size] = key
        value_cache[slots // size, slots % size] = value


class Rounding(Flash):
    """Loses a part of each key, like a quantized cache."""

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor, *others: Any) -> None:
        super().do_kv_cache_update(layer, key // 8 * 8, *others)


def assert_keys_are_read(own: Any, block_size: int) -> None:
    """Write random keys into blocks of the scheduler with the layer's own function, and read them."""
    slots = torch.tensor([block * block_size + token for block in BLOCKS for token in range(block_size)])
    shape = (len(slots), own.num_kv_heads, own.head_size)
    keys, values = (torch.randn(shape).to(own.kv_cache.dtype) for _ in range(2))
    own.impl.do_kv_cache_update(own, keys, values, own.kv_cache, slots)
    reader = KeyReader(own, block_size)
    for tokens in (len(slots), len(slots) - 5, block_size + 1, 1):
        found = torch.cat(list(reader.read(BLOCKS, tokens)))
        assert found.dtype == torch.float32 and torch.equal(found, keys[:tokens].float())


@pytest.mark.parametrize(
    ("isa", "dtype", "block_size", "head_size"),
    [
        ("vec", torch.float32, 32, 64),
        ("vec", torch.bfloat16, 64, 128),
        ("vec", torch.float16, 1024, 32),
        ("vec16", torch.float32, 32, 80),
        ("amx", torch.bfloat16, 32, 64),
    ],
)
def test_keys_are_read_from_the_caches_of_the_cpu_kernels(
    isa: str, dtype: torch.dtype, block_size: int, head_size: int
) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

    impl = CPUAttentionBackendImpl.__new__(CPUAttentionBackendImpl)  # its __init__ needs a running engine
    impl.attn_type, impl.kv_cache_dtype = "decoder", "auto"
    cache = torch.zeros(8, HEADS, block_size, 2 * head_size, dtype=dtype)
    assert_keys_are_read(layer(cache, impl, CPUAttentionBackend, isa=isa), block_size)


@pytest.mark.parametrize("arrangement", ["heads first", "tokens first", "all layers in a block"])
@pytest.mark.parametrize("divisor", [1, 4])
def test_keys_are_read_from_the_caches_of_the_gpu_backends(arrangement: str, divisor: int) -> None:
    blocks, size, head_size = 8 * divisor, 64 // divisor, 16
    cache = {
        "heads first": torch.zeros(blocks, HEADS, size, 2 * head_size),
        "tokens first": torch.zeros(blocks, size, HEADS, 2 * head_size).transpose(1, 2),
        "all layers in a block": torch.zeros(blocks, 3, HEADS, size, 2 * head_size)[:, 1],
    }[arrangement]
    assert_keys_are_read(layer(cache.to(torch.bfloat16), Flash()), 64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sliding_window": 128}, "has a sliding window"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "is quantized"),
        ({"kv_sharing_target_layer_name": "model.layers.1.attn"}, "uses the keys of another layer"),
        ({"has_sink": True}, "has sinks, ALiBi or capped logits"),
        ({"impl": Rounding()}, "does not store keys one by one"),
        ({"head_size_v": 24}, "has a cache of shape"),
        (
            {"attn_backend": SimpleNamespace(forward_includes_kv_cache_update=True, get_name=lambda: "HPC")},
            "HPC has no function that writes keys",
        ),
    ],
)
def test_cache_that_cannot_be_read_is_refused(change: dict[str, Any], reason: str) -> None:
    own = layer(torch.zeros(8, HEADS, 32, 32), Flash())
    KeyReader(own, 64)
    with pytest.raises(UnreadableCache, match=reason):
        KeyReader(SimpleNamespace(**{**vars(own), **change}), 64)
