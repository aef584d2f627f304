"""Reads the keys of one layer from vLLM's KV cache, inside a worker.

Every attention backend arranges a block of the cache in its own way, and the CPU's kernels arrange it differently for
each kind of processor. So the arrangement is not assumed: it is found at the start, with the backend's own function
that writes keys into a cache. Numbered keys are written into an empty block, and then their numbers are searched in
it. If a key is not found exactly once, the cache is not read at all.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

BASE = 128
"""The keys are numbered with digits of this base. A cache of 16-bit floats stores each digit exactly."""
CHUNK = 2048
"""Tokens whose keys are read at once. It limits the memory that a long context needs."""


class UnreadableCache(Exception):
    """Raised if keys cannot be read. The text completes the sentence "... cannot give attention weights, because"."""


def decoder_layers(runner: Any) -> dict[int, Any]:
    """Return the decoder's attention layers of this worker, numbered from 1."""
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.model_executor.models.utils import extract_layer_index
    from vllm.v1.attention.backend import AttentionType

    found: dict[int, Any] = {}
    for module in runner.get_model().modules():
        if isinstance(module, Attention) and module.attn_type == AttentionType.DECODER:
            number = extract_layer_index(module.layer_name) + 1
            if number in found:
                raise UnreadableCache(f"its layer {number} has several attentions")
            found[number] = module
    return found


class KeyReader:
    """Reads the keys of one layer."""

    def __init__(self, layer: Any, block_size: int) -> None:
        """`layer`: vLLM's `Attention`. `block_size`: tokens in a block of the scheduler. The backend may divide such a
        block into several blocks of its own."""
        reason = _unusable(layer)
        if reason is not None:
            raise UnreadableCache(reason)
        self._layer = layer
        self._shape = (layer.num_kv_heads, layer.head_size)
        places = _places(layer, layer.kv_cache)
        own_size = len(places)
        if block_size % own_size or len(layer.kv_cache) < block_size // own_size:
            raise UnreadableCache(f"its blocks of {own_size} tokens do not divide vLLM's blocks of {block_size} tokens")
        self._places = places.flatten()
        self._divisor = block_size // own_size
        self._own_size = own_size

    def read(self, blocks: Sequence[int], tokens: int) -> Iterator[torch.Tensor]:
        """Yield the keys of the first tokens of a request in fp32, in chunks [token, KV head, dimension]. `blocks`: the
        request's blocks, as the scheduler numbers them."""
        cache: torch.Tensor = self._layer.kv_cache
        own = [block * self._divisor + part for block in blocks for part in range(self._divisor)]
        own = own[: -(-tokens // self._own_size)]
        step = max(1, CHUNK // self._own_size)
        for start in range(0, len(own), step):
            numbers = torch.tensor(own[start : start + step], device=cache.device)
            whole = cache[numbers].flatten(1)
            keys = whole[:, self._places].view(-1, *self._shape)
            yield keys[: tokens - start * self._own_size].float()


def _places(layer: Any, cache: torch.Tensor) -> torch.Tensor:
    """Return the place of each key in a flattened block: [token, KV head, dimension]. Raises `UnreadableCache`."""
    backend = layer.attn_backend
    if backend.forward_includes_kv_cache_update:
        raise UnreadableCache(f"its attention backend {backend.get_name()} has no function that writes keys")
    heads, size = layer.num_kv_heads, layer.head_size
    per_token = heads * (size + layer.head_size_v)
    tokens, rest = divmod(cache[0].numel(), per_token)
    if rest or not tokens:
        raise UnreadableCache(f"its attention backend {backend.get_name()} has a cache of shape {list(cache.shape)}")
    # The block has the strides of the cache, because they may be part of the arrangement.
    block = torch.empty_strided((1, *cache.shape[1:]), cache.stride(), dtype=cache.dtype, device=cache.device).zero_()
    slots = torch.arange(tokens, device=cache.device)
    value = torch.zeros(tokens, heads, layer.head_size_v, dtype=cache.dtype, device=cache.device)
    numbers = torch.arange(tokens * heads * size, device=cache.device).view(tokens, heads, size)
    found = torch.zeros(block.numel(), dtype=torch.int64, device=cache.device)
    weight = 1
    while weight < numbers.numel():
        digits = numbers // weight % BASE + 1  # not 0: the places of values stay 0
        layer.impl.do_kv_cache_update(layer, digits.to(cache.dtype), value, block, slots)
        found += (block.flatten().to(torch.int64) - 1) * weight
        weight *= BASE
    is_key = block.flatten() != 0
    places = is_key.nonzero().flatten()
    order = found[places].argsort()
    if not torch.equal(found[places][order], numbers.flatten()):
        raise UnreadableCache(f"its attention backend {backend.get_name()} does not store keys one by one")
    return places[order].view(tokens, heads, size)


def _unusable(layer: Any) -> str | None:
    """Return why the attention of a layer cannot be computed from its keys."""
    from vllm.utils.torch_utils import is_quantized_kv_cache

    number = layer.layer_name
    if layer.sliding_window is not None:
        return f"the attention of {number} has a sliding window"
    if is_quantized_kv_cache(layer.kv_cache_dtype):
        return f"the KV cache of {number} is quantized ({layer.kv_cache_dtype})"
    if layer.kv_sharing_target_layer_name is not None:
        return f"{number} uses the keys of another layer"
    impl = layer.impl
    if layer.has_sink or getattr(impl, "alibi_slopes", None) is not None or getattr(impl, "logits_soft_cap", None):
        return f"the attention of {number} has sinks, ALiBi or capped logits"
    return None
