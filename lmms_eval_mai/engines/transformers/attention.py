"""Attention of the last token of a prompt to the tokens of a text, without attention matrices (Eq. 12).

Our attention function is transformers' `sdpa`, and it also reads the row of attention that is asked for, in fp32. So
memory grows with the length of the prompt and not with its square. A forward pass of its own reads the rows.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from lmms_eval_mai.contract import Image, Message

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


def read_attention(model: Any, inputs: Mapping[str, torch.Tensor], layer: int, begin: int, length: int) -> list[float]:
    """Return how one layer, numbered from 1, attends from the last token of a prompt to `length` tokens from the
    position `begin`: the attention probabilities, softmax over the whole context in fp32, as the mean over all heads.
    Raises `ValueError` if the layer has no attention, or changes it in a way that is not computed here."""
    reading = _Reading(set(model.get_decoder().layers[layer - 1].modules()), slice(begin, begin + length))
    token = _reading.set(reading)
    try:
        with torch.inference_mode(), contextlib.suppress(_WasRead):
            model(**inputs, use_cache=False, logits_to_keep=1)
    finally:
        _reading.reset(token)
    if reading.weights is None:
        raise ValueError(f"layer {layer} gives no attention weights")
    return [float(weight) for weight in reading.weights.mean(0)]


def find_in_prompt(
    offsets: Sequence[tuple[int, int]], shown: str, message: Message, text: str
) -> tuple[int, tuple[str, ...]]:
    """Return the position of the first token of a prompt that carries a text, and the part of the text that it and each
    of the next tokens carry. The text must be one part of the last message.

    `offsets`: for each token, its first character and the character after its last one. The tokenizer's text is longer
    than `shown`, the text of the chat template, because the processor repeats the image token. So positions are counted
    from the end. A character that is spread over several tokens belongs to the last of them. Raises `ValueError` if the
    text is not found.
    """
    parts = [*map(str, itertools.takewhile(lambda part: not isinstance(part, Image), reversed(message.content)))]
    whole = "".join(reversed(parts))
    kept = whole if whole in shown else whole.strip()  # some templates trim a message
    if not text or text not in parts or kept not in shown:
        raise ValueError(
            f"a text of {len(text)} characters was not found, so there is no attention on it. It must be a part of the "
            "last message, and the model's chat template must not change it. Use transfer=full"
        )
    before = sum(map(len, parts[parts.index(text) + 1 :]))
    begin = offsets[-1][1] - len(shown) + shown.rindex(kept) - whole.index(kept) + before
    first, cuts = _cuts(offsets, begin, begin + len(text))
    return first, tuple(text[a - begin : b - begin] for a, b in itertools.pairwise(cuts))


def _cuts(offsets: Sequence[tuple[int, int]], begin: int, end: int) -> tuple[int, list[int]]:
    """Return the position of the first token with a character from `begin` to `end`, and where it and the next tokens
    cut these characters.

    A tokenizer that composes characters (Unicode's NFC) leaves the composed marks out of its offsets. They belong to
    the token before them, so a token reaches at least to the next one.
    """
    starts = [start for start, _ in offsets]
    ends = [max(last, following) for (_, last), following in zip(offsets, [*starts[1:], end], strict=True)]
    first = next(position for position, token_end in enumerate(ends) if token_end > begin)
    after = next((position for position, start in enumerate(starts) if start >= end), len(starts))
    return first, [begin, *(max(begin, start) for start in starts[first + 1 : after]), end]


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
