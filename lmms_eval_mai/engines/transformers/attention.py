"""Attention of one token, without attention matrices (Eq. 12).

transformers lets a program register an attention function. Ours is its `sdpa`, and it also shows the queries and keys
of each layer to a reader. The reader computes the one row of attention that is asked for, in fp32. So memory grows
with the length of the prompt and not with its square.

Attention is read in a forward pass of its own, up to the highest requested layer. A call with `AttentionRequest.text`
and a limit of one output token is a scoring call: this pass is all that it needs. For any other call, the pass follows
the decoding.
"""

import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from lmms_eval_mai.engines.transformers.options import supports_attention

ATTENTION_FUNCTION = "lmms_eval_mai_sdpa"
"""The name of our attention function in transformers."""

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change the probabilities in ways that are not computed here."""


@dataclass(frozen=True)
class LayerAttention:
    """One layer at the last token of a prompt. All tensors are fp32 and on the CPU."""

    weights: torch.Tensor
    """Attention probabilities of the text's tokens, softmax over the whole context: (heads, tokens)."""
    query: torch.Tensor
    """The last token's query after the rotary embedding: (heads, size)."""
    keys: torch.Tensor
    """Keys of the text's tokens after the rotary embedding: (heads of keys, tokens, size). With grouped heads, query
    head h reads head h // (heads / heads of keys)."""
    values: torch.Tensor
    """Values of the text's tokens, in the same shape."""
    scaling: float
    """Factor of the product of query and key before the softmax."""


@dataclass(frozen=True)
class AttentionStates:
    """How the last token of a prompt reads a text of the prompt, in each requested layer and each head."""

    tokens: tuple[str, ...]
    """The parts of the text that its tokens carry. Joined, they are the text."""
    layers: tuple[LayerAttention, ...]
    """In the order of the request."""


class AttentionReader:
    """Reads how the last token of a prompt attends to other tokens, with one loaded model. Must be used by one thread
    at a time."""

    def __init__(self, model: Any) -> None:
        """Raises `ValueError` if the model does not use our attention function."""
        decoder = model.get_decoder()
        if decoder.config._attn_implementation != ATTENTION_FUNCTION or not supports_attention(decoder):
            raise ValueError(
                f"{type(model).__name__} does not use transformers' attention interface with `sdpa`, and cannot give "
                "attention weights"
            )
        self._model = model
        self._layers = {module: number for number, layer in enumerate(decoder.layers, 1) for module in layer.modules()}
        """The number of the layer, from 1, of each module of the decoder."""
        self._depth = len(decoder.layers)
        self._missing: set[int] = set()
        """The requested layers that the forward pass has not reached."""
        self._found: dict[int, LayerAttention] = {}
        self._text = slice(0)
        """The positions of the tokens whose attention is read."""

    def read(self, inputs: Mapping[str, Any], layers: Sequence[int], begin: int, end: int) -> list[LayerAttention]:
        """Return how each head of the layers attends to the tokens from `begin` up to `end`, in the order of `layers`.

        `inputs`: one prompt, on the model's device. Raises `ValueError` if a layer has no attention, or changes its
        probabilities in a way that is not computed here.
        """
        self._missing, self._found, self._text = set(layers), {}, slice(begin, end)
        token = _reader.set(self)
        try:
            with torch.inference_mode(), contextlib.suppress(_AllRead):
                self._model(**inputs, use_cache=False, logits_to_keep=1)
        finally:
            _reader.reset(token)
        if self._missing:
            raise ValueError(f"layer {min(self._missing)} has no attention: the model has layers 1 to {self._depth}")
        return [self._found[layer] for layer in layers]

    def see(
        self,
        module: Any,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
        more: Mapping[str, Any],
    ) -> None:
        """Read one layer, if it is asked for. Raises `_AllRead` if it is the last one.

        `query`: (1, heads, tokens, size). `keys`, `values`: (1, heads of keys, tokens, size). `mask`: (1, 1 or heads,
        tokens, tokens), as `sdpa` takes it. None: causal. `more`: further arguments of the attention function.
        """
        layer = self._layers.get(module)
        if layer not in self._missing:
            return
        changed = [name for name in UNSUPPORTED if more.get(name) is not None]
        if changed:
            raise ValueError(f"layer {layer} has {', '.join(changed)}, and its attention weights are not known then")
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        of_last = probabilities(query[0, :, -1], keys[0], factor, None if mask is None else mask[0, :, -1])
        self._found[layer] = LayerAttention(
            weights=of_last[:, self._text].cpu(),
            query=query[0, :, -1].float().cpu(),
            keys=keys[0, :, self._text].float().cpu(),
            values=values[0, :, self._text].float().cpu(),
            scaling=factor,
        )
        self._missing.remove(layer)
        if not self._missing:
            raise _AllRead


class _AllRead(Exception):
    """Raised in a forward pass after the highest layer that is asked for, to end the pass."""


_reader: ContextVar[AttentionReader | None] = ContextVar("reader", default=None)
"""The reader of the forward pass that runs in this thread."""


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> Any:
    """Compute attention as transformers' `sdpa` does, and show it to the reader."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if (reader := _reader.get()) is not None:
        reader.see(module, query, key, value, attention_mask, scaling, more)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)


def register() -> str:
    """Make our attention function known to transformers, and return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION_FUNCTION, _attention)
    AttentionMaskInterface.register(ATTENTION_FUNCTION, sdpa_mask)
    return ATTENTION_FUNCTION


def probabilities(
    query: torch.Tensor, keys: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the attention probabilities of one token in fp32: (heads, length).

    `query`: (heads, size). `keys`: (heads of keys, length, size). `mask`: (1 or heads, length), True or 0.0 where the
    token attends.
    """
    groups = query.float().view(keys.shape[0], -1, query.shape[-1])
    scores = (groups @ keys.float().transpose(1, 2)).flatten(0, 1) * scaling
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1)
