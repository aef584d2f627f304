"""The large model in transformers: how its heads read a thinking, and its answers.

The attention function is transformers' own `sdpa`. It also computes the row of the last token, so no matrix of all
tokens by all tokens is kept.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForImageTextToText, AutoProcessor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from experiments.attention.documents import Chat

FUNCTION = "last_token_sdpa"
ROUNDING = 1e-9
"""A sum of shares this close to delta has reached it."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reading:
    """How the last token of a prompt reads a text in it."""

    tokens: tuple[str, ...]
    """The part of the text that each token carries."""
    weights: Array
    """The attention probabilities, softmax over the whole context: (layers, heads, tokens)."""
    values: Array
    """The value vectors of the tokens: (layers, groups of heads, tokens, size)."""


class LargeModel:
    """A Hugging Face checkpoint."""

    def __init__(self, model: str, device: str, dtype: str) -> None:
        AttentionInterface.register(FUNCTION, self._attend)
        AttentionMaskInterface.register(FUNCTION, sdpa_mask)
        # The vision tower keeps transformers' default, so that only the decoder's layers call `_attend`, in order.
        functions = {"text_config": FUNCTION}
        self.model = AutoModelForImageTextToText.from_pretrained(
            model, dtype=dtype, attn_implementation=functions, device_map=device
        ).eval()
        self.processor = AutoProcessor.from_pretrained(model)
        self.processor.tokenizer.padding_side = "left"
        self.layers: int = self.model.config.get_text_config().num_hidden_layers
        self._read: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        """Weights and values of the layers, while `read` runs."""

    def _attend(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **more: Any
    ) -> Any:
        """Compute attention, and keep the row of the last token while `read` runs. `query`: (1, heads, tokens, size).
        `key`, `value`: (1, groups of heads, tokens, size)."""
        if self._read is not None:
            of_groups = query[0, :, -1].float().view(key.shape[1], -1, query.shape[-1])
            scores = (of_groups @ key[0].float().transpose(1, 2)).flatten(0, 1)
            scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
            self._read.append((scores.softmax(-1), value[0]))
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **more)

    def read(self, chat: Chat, text: str, after: str) -> Reading:
        """Return how the last token of a prompt reads `text`, which `after` and the chat's end follow."""
        inputs = self._inputs([chat], return_offsets_mapping=True)
        shown = self._shown(chat)
        begin, tokens = find(inputs.pop("offset_mapping")[0].tolist(), shown, text, after)
        span = slice(begin, begin + len(tokens))
        self._read = []
        try:
            with torch.inference_mode():
                self.model(**inputs.to(self.model.device, self.model.dtype), use_cache=False, logits_to_keep=1)
            weights = torch.stack([row[:, span] for row, _ in self._read])
            values = torch.stack([vectors[:, span].float() for _, vectors in self._read])
        finally:
            self._read = None
        return Reading(tokens, weights.double().cpu().numpy(), values.double().cpu().numpy())

    def answer(self, chats: Sequence[Chat], max_new_tokens: int, batch_size: int) -> list[tuple[str, int]]:
        """Return the greedy answer to each prompt, and the tokens of the prompt."""
        found: list[tuple[str, int]] = []
        for first in range(0, len(chats), batch_size):
            inputs = self._inputs(chats[first : first + batch_size]).to(self.model.device, self.model.dtype)
            with torch.inference_mode():
                output = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
            texts = self.processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            found += zip(texts, inputs["attention_mask"].sum(1).tolist(), strict=True)
        return found

    def _shown(self, chat: Chat) -> str:
        return str(self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    def _inputs(self, chats: Sequence[Chat], **more: Any) -> Any:
        images = [[part["image"] for part in chat[-1]["content"] if part["type"] == "image"] for chat in chats]
        return self.processor(
            text=[self._shown(chat) for chat in chats],
            images=images if images[0] else None,
            padding=True,
            add_special_tokens=False,
            return_tensors="pt",
            **more,
        )


def find(offsets: Sequence[Sequence[int]], shown: str, text: str, after: str) -> tuple[int, tuple[str, ...]]:
    """Return the first token of a prompt that carries `text`, and the part of it that this token and each of the next
    ones carry.

    `offsets`: first character of each token, and the character after it. The processor repeats the image token, so the
    tokenizer's text is longer than `shown` and places are counted from the end. A character of several tokens belongs
    to the last of them, and a token over the border of the text is cut to it.
    """
    begin = shown.rindex(text + after) + offsets[-1][1] - len(shown)
    end = begin + len(text)
    first = next(number for number, (_, stop) in enumerate(offsets) if stop > begin)
    later = list(itertools.takewhile(lambda start: start < end, (start for start, _ in offsets[first + 1 :])))
    cuts = [begin, *(max(begin, start) for start in later), end]
    return first, tuple(text[a - begin : b - begin] for a, b in itertools.pairwise(cuts))


def kept(weights: Array, delta: float) -> Array:
    """Return which tokens Eq. 12 keeps: the fewest heaviest ones that carry the share `delta` of the weight. Of equal
    weights, the earlier token counts first. `weights` and the result: the tokens are the last dimension."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    sums = np.cumsum(np.take_along_axis(weights, order, -1), axis=-1)
    number = (sums < (delta - ROUNDING) * sums[..., -1:]).sum(-1, keepdims=True) + 1
    ranks = np.argsort(order, axis=-1)
    return np.asarray(ranks < number)
