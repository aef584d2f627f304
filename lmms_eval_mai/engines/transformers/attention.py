"""Attention of one token, without attention matrices (Eq. 12).

Our attention function is transformers' `sdpa`, and it also reads the row of attention that is asked for, in fp32. So
memory grows with the length of the prompt and not with its square. A forward pass of its own reads the rows.
"""

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from lmms_eval_mai.engines.transformers.inputs import Inputs, on_device

ATTENTION_FUNCTION = "lmms_eval_mai_sdpa"
"""The name of our attention function in transformers."""

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change the probabilities in ways that are not computed here."""


@dataclass
class _Reading:
    """What a forward pass must read."""

    modules: set[Any]
    """The modules of the layer that is asked for."""
    text: slice
    """The positions of the tokens whose attention is read."""
    weights: torch.Tensor | None = None
    """What was read: (heads, tokens)."""


class _WasRead(Exception):
    """Raised in a forward pass after the layer that is asked for, to end the pass."""


_reading: ContextVar[_Reading | None] = ContextVar("reading", default=None)
"""What the forward pass that runs in this thread must read."""


def read_attention(model: Any, inputs: Inputs, layer: int, begin: int, length: int) -> list[float]:
    """Return how one layer, numbered from 1, attends from the last token of a prompt to `length` tokens from the
    position `begin`: the attention probabilities, softmax over the whole context in fp32, as the mean over all heads.
    Raises `ValueError` if the layer has no attention, or changes it in a way that is not computed here."""
    reading = _Reading(set(model.get_decoder().layers[layer - 1].modules()), slice(begin, begin + length))
    token = _reading.set(reading)
    try:
        with torch.inference_mode(), contextlib.suppress(_WasRead):
            model(**on_device(inputs, model), use_cache=False, logits_to_keep=1)
    finally:
        _reading.reset(token)
    if reading.weights is None:
        raise ValueError(f"layer {layer} gives no attention weights")
    return [float(weight) for weight in reading.weights.mean(0)]


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> Any:
    """Compute attention as transformers' `sdpa` does, and read the row of the last token if it is asked for.

    `query`: (1, heads, tokens, size). `key`, `value`: (1, groups of heads, tokens, size). `attention_mask`: (1, 1,
    tokens, tokens), True where a token attends. None: causal.
    """
    reading = _reading.get()
    if reading is not None and module in reading.modules:
        if changed := [name for name in UNSUPPORTED if more.get(name) is not None]:
            raise ValueError(f"the layer has {', '.join(changed)}, and its attention weights are not known then")
        groups = query[0, :, -1].float().view(key.shape[1], -1, query.shape[-1])
        scores = (groups @ key[0].float().transpose(1, 2)).flatten(0, 1)
        scores *= query.shape[-1] ** -0.5 if scaling is None else scaling
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[0, :, -1], float("-inf"))
        reading.weights = scores.softmax(-1)[:, reading.text].cpu()
        raise _WasRead
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)


AttentionInterface.register(ATTENTION_FUNCTION, attend)
AttentionMaskInterface.register(ATTENTION_FUNCTION, sdpa_mask)
