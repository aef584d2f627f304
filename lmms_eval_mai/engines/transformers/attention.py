"""Attention of one token, without attention matrices (Eq. 12).

transformers lets a program register an attention function. Ours is its `sdpa`, and it also shows the queries and keys
of each layer to an observer. The observer computes the one row of attention that is asked for, in fp32. So memory grows
with the length of the prompt and not with its square.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

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


class ScoringDone(Exception):
    """Ends a forward pass after the highest layer that is asked for."""


@dataclass(frozen=True)
class Shown:
    """The tensors of one layer in one forward pass."""

    query: torch.Tensor
    """(batch, heads, tokens of this pass, size)."""
    keys: torch.Tensor
    """(batch, heads of keys, tokens so far, size)."""
    values: torch.Tensor
    mask: torch.Tensor | None
    """(batch, 1 or heads, tokens of this pass, tokens so far), as `sdpa` takes it. None: causal."""
    scaling: float


class Observer(Protocol):
    """Sees the attention of the layers that it asks for, during a block."""

    @property
    def layers(self) -> Collection[int]:
        """The layers, numbered from 1."""

    def see(self, layer: int, shown: Shown) -> None:
        """Take what is needed from one layer. Raises `ScoringDone` if the rest of the pass is not needed."""


@dataclass(frozen=True)
class _Observation:
    observer: Observer
    layers: Mapping[Any, int]
    """Module -> number of its layer."""


_observation: ContextVar[_Observation | None] = ContextVar("observation", default=None)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> Any:
    """Compute attention as transformers' `sdpa` does, and show it to the observer of the block."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    observation = _observation.get()
    layer = None if observation is None else observation.layers.get(module)
    if observation is not None and layer is not None and layer in observation.observer.layers:
        changed = [name for name in UNSUPPORTED if more.get(name) is not None]
        if changed:
            raise ValueError(f"layer {layer} has {', '.join(changed)}, and its attention weights are not known then")
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        observation.observer.see(layer, Shown(query, key, value, attention_mask, factor))
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)


def register() -> str:
    """Make our attention function known to transformers, and return its name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION_FUNCTION, _attention)
    AttentionMaskInterface.register(ATTENTION_FUNCTION, sdpa_mask)
    return ATTENTION_FUNCTION


def decoder_layers(model: Any) -> Mapping[Any, int]:
    """Return the numbers of the decoder's layers, from 1, by the modules that are part of them. Raises `ValueError` if
    the model does not use our attention function."""
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    used = getattr(decoder.config, "_attn_implementation", None)
    if not layers or used != ATTENTION_FUNCTION or not supports_attention(decoder):
        raise ValueError(
            f"{type(model).__name__} does not use transformers' attention interface with `sdpa`, and cannot give "
            "attention weights"
        )
    return {module: number for number, layer in enumerate(layers, 1) for module in layer.modules()}


@contextlib.contextmanager
def observed(observer: Observer, layers: Mapping[Any, int]) -> Iterator[None]:
    """Show the observer the attention of all forward passes of this thread during the block. `layers`: as
    `decoder_layers` returns them."""
    token = _observation.set(_Observation(observer, layers))
    try:
        yield
    finally:
        _observation.reset(token)


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


class PromptObserver:
    """Computes the attention of the last prompt token to a text of the prompt."""

    def __init__(self, layers: Sequence[int], spans: Mapping[int, tuple[int, int]], stops: bool, states: bool = False):
        """`spans`: row of the batch -> first position of the text and position after it, padding included. `stops`:
        whether layers above the highest one are not run. `states`: whether `LayerAttention` is kept."""
        self.layers = frozenset(layers)
        self.weights: dict[tuple[int, int], torch.Tensor] = {}
        """Layer and row of the batch -> mean over heads of the probability of each token."""
        self.states: dict[int, LayerAttention] = {}
        """Layer -> states of row 0."""
        self._spans, self._stops, self._keeps_states = spans, stops, states
        self._open = set(layers)

    def see(self, layer: int, shown: Shown) -> None:
        if layer not in self._open:  # a decoding step after the prompt
            return
        self._open.remove(layer)
        for row, (begin, end) in self._spans.items():
            mask = None if shown.mask is None else shown.mask[row, :, -1]
            weights = probabilities(shown.query[row, :, -1], shown.keys[row], shown.scaling, mask)[:, begin:end]
            self.weights[layer, row] = weights.mean(0).cpu()
            if self._keeps_states:
                self.states[layer] = LayerAttention(
                    weights=weights.cpu(),
                    query=shown.query[row, :, -1].float().cpu(),
                    keys=shown.keys[row, :, begin:end].float().cpu(),
                    values=shown.values[row, :, begin:end].float().cpu(),
                    scaling=shown.scaling,
                )
        if self._stops and not self._open:
            raise ScoringDone


class OutputObserver:
    """Keeps what the attention of the last decoding step needs. It is computed when the length of each answer is
    known, because shorter answers of a batch end earlier."""

    def __init__(self, layers: Collection[int]) -> None:
        self.layers = frozenset(layers)
        self._queries: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        """Layer -> for each pass, the query of the last token in each row."""
        self._keys: dict[int, tuple[torch.Tensor, float]] = {}
        """Layer -> keys of the last pass, and the scaling."""

    def see(self, layer: int, shown: Shown) -> None:
        self._queries[layer].append(shown.query[:, :, -1].clone())
        self._keys[layer] = shown.keys, shown.scaling

    def weights(self, layer: int, row: int, padding: int, prompt_tokens: int, output_tokens: int) -> list[float]:
        """Return the mean over heads of the probability of each output token except the last one, which was never fed.

        The query is the token before the last one, in the pass that gave the last one. `padding`: tokens before the
        prompt. Raises `ValueError` if the layer does not keep the keys of all tokens.
        """
        queries, (all_keys, scaling) = self._queries[layer], self._keys[layer]
        begin = padding + prompt_tokens
        if all_keys.shape[2] != begin + len(queries) - 1:
            raise ValueError(f"layer {layer} does not keep the keys of all tokens; choose another sparse_layer")
        keys = all_keys[row, :, padding : begin + output_tokens - 1]
        weights: list[float] = probabilities(queries[output_tokens - 1][row], keys, scaling).mean(0).tolist()
        return weights[prompt_tokens:]
