"""Converts a chat into the inputs of a Hugging Face model.

The checkpoint's own processor applies its template, tokenizes, and prepares the images. One thing differs: a part of a
text that looks like a special token is not read as a special token. If a chat has such text, each text of the chat is
replaced by one placeholder token, which no template changes. Then each placeholder is replaced by the tokens of its
literal text.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.messages import LiteralTokenizer, merge_adjacent_text
from lmms_eval_mai.engines.transformers.token_texts import Offsets, last_text

PLACEHOLDER = "<|lmms-eval-mai-hidden|>"


@dataclass(frozen=True)
class ModelInput:
    """One prompt as tensors."""

    tokens: dict[str, torch.Tensor]
    """Name -> int tensor of shape (1, length): `input_ids`, `attention_mask` and others of this shape."""
    others: dict[str, torch.Tensor]
    """Name -> tensor whose first dimension counts image patches or images."""
    image_tokens: int | None = None
    """Tokens that stand for images. None: the processor does not name its image token."""
    offsets: Offsets | None = None
    """The characters of each token, counted from the beginning of the chat's last text. None: not asked for, or the
    chat template changed this text."""

    @property
    def length(self) -> int:
        """Number of tokens, image tokens included."""
        return int(self.tokens["input_ids"].shape[1])

    def batch_key(self) -> tuple[Any, ...]:
        """Return a key that is equal for prompts that fit into one batch."""
        return (*sorted(self.tokens), *sorted((name, tuple(t.shape[1:])) for name, t in self.others.items()))

    def with_output(self, ids: Sequence[int]) -> "ModelInput":
        """Return this prompt with generated tokens after it. The other tensors repeat the value of the last token."""
        pad = torch.nn.functional.pad
        tokens = {name: pad(t, (0, len(ids)), value=int(t[0, -1])) for name, t in self.tokens.items()}
        tokens["input_ids"][0, self.length :] = torch.tensor(ids)
        return replace(self, tokens=tokens, offsets=None)


class InputBuilder:
    """Builds model inputs with the processor of one checkpoint. Must be used by one thread at a time."""

    def __init__(self, processor: Any) -> None:
        self._processor = copy.deepcopy(processor)
        self.tokenizer = self._processor.tokenizer
        self.literal = LiteralTokenizer(self.tokenizer, [PLACEHOLDER])
        extra = {"additional_special_tokens": [PLACEHOLDER]}
        self.tokenizer.add_special_tokens(extra, replace_extra_special_tokens=False)
        self._placeholder_id = self.tokenizer.convert_tokens_to_ids(PLACEHOLDER)

    def build(self, chat: tuple[Message, ...], offsets: bool = False) -> ModelInput:
        """Return the model input of a chat. `offsets`: whether it must have the offsets of its tokens. Raises errors of
        the processor, for example for an image that it cannot prepare."""
        texts = [part for message in chat for part in message.content if isinstance(part, str)]
        hide = any(map(self.literal.looks_special, texts))
        hidden: list[str] = []
        messages: list[dict[str, Any]] = []
        images: list[Any] = []
        for message in chat:
            content: list[dict[str, str]] = []
            for part in merge_adjacent_text(message.content):
                if isinstance(part, Image):
                    images.append(part.pixels)
                    content.append({"type": "image"})
                    continue
                if hide:
                    hidden.append(part)
                content.append({"type": "text", "text": PLACEHOLDER if hide else part})
            messages.append({"role": message.role, "content": content})
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        more = {"return_offsets_mapping": True} if offsets else {}
        inputs = self._processor(
            text=[text], images=images or None, return_tensors="pt", add_special_tokens=False, **more
        )
        in_shown = inputs.pop("offset_mapping")[0].tolist() if offsets else None
        tokens = {name: t for name, t in inputs.items() if t.shape == inputs["input_ids"].shape}
        others = {name: t for name, t in inputs.items() if name not in tokens}
        ids = tokens["input_ids"]
        image_token_id = getattr(self._processor, "image_token_id", None)
        image_tokens = None if image_token_id is None else int((ids == image_token_id).sum())
        if hide:
            tokens, restored = self._restore_text(tokens, hidden, offsets)
            return ModelInput(tokens, others, image_tokens, restored)
        counted = None if in_shown is None else _from_last_text(in_shown, text, last_text(chat[-1]))
        return ModelInput(tokens, others, image_tokens, counted)

    def _restore_text(
        self, tokens: dict[str, torch.Tensor], hidden: list[str], offsets: bool
    ) -> tuple[dict[str, torch.Tensor], Offsets | None]:
        """Replace each placeholder by the tokens of its text. Other tensors, the attention mask for example, repeat the
        placeholder's value for every token of the text. Also return the offsets, if they are asked for."""
        is_hidden = tokens["input_ids"][0] == self._placeholder_id
        texts = [self.literal.tokens(text) for text in hidden]
        counts = torch.ones_like(tokens["input_ids"][0])
        counts[is_hidden] = torch.tensor([len(text) for text in texts])
        restored = {name: tensor.repeat_interleave(counts, dim=1) for name, tensor in tokens.items()}
        ids = restored["input_ids"]
        ids[ids == self._placeholder_id] = torch.tensor(list(itertools.chain(*texts)), dtype=ids.dtype)
        if not offsets:
            return restored, None
        last = int(is_hidden.nonzero()[-1])
        earlier, later = int(counts[:last].sum()), len(counts) - last - 1
        end = len(hidden[-1])
        return restored, [(-1, 0)] * earlier + self.literal.offsets(hidden[-1]) + [(end, end)] * later


def _from_last_text(offsets: list[tuple[int, int]], shown: str, text: str) -> Offsets | None:
    """Return offsets that are counted from the beginning of a chat's last text. None: the text is not there.

    `offsets`: as the tokenizer gives them. Its text has more characters than `shown`, the text of the chat template,
    because the processor repeats the image token. So the place of the last text is counted from the end.
    """
    kept = text if text in shown else text.strip()  # some templates trim a message
    place = shown.rfind(kept)
    if place < 0:
        return None
    begin = offsets[-1][1] - len(shown) + place - text.index(kept)
    return [(start - begin, end - begin) for start, end in offsets]


def batch_of(prompts: list[ModelInput], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Return one model input for prompts with the same `batch_key()`, padded on the left."""
    longest = max(prompt.length for prompt in prompts)
    batch = {name: torch.cat([prompt.others[name] for prompt in prompts]) for name in prompts[0].others}
    for name in prompts[0].tokens:
        padding = pad_token_id if name == "input_ids" else 0
        rows = [torch.nn.functional.pad(p.tokens[name], (longest - p.length, 0), value=padding) for p in prompts]
        batch[name] = torch.cat(rows)
    return batch


def on_device(tensors: Mapping[str, torch.Tensor], model: Any) -> dict[str, torch.Tensor]:
    """Return tensors on a model's device. Those of floating-point numbers get the model's type."""
    return {
        name: tensor.to(model.device, model.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
