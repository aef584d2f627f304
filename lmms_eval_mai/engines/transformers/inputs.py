"""A chat as a Hugging Face model takes it: template, tokens and pictures are the checkpoint's own processor's, but for
one thing: text that looks like a special token stays text.

Every text of a chat that holds such text is first hidden behind one token of our own, which no template touches and no
model sees, and put in its place as tokens of plain text.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from lmms_eval_mai.engines.base import Image, Message
from lmms_eval_mai.engines.literal_text import LiteralTokenizer
from lmms_eval_mai.engines.messages import merge_adjacent_text

HIDDEN = "<|lmms-eval-mai-hidden|>"


@dataclass(frozen=True)
class ModelInput:
    """One prompt. `tokens`: name -> int tensor (1, length), `input_ids` and `attention_mask` among them; `others`:
    name -> tensor whose first dimension counts patches or pictures."""

    tokens: dict[str, torch.Tensor]
    others: dict[str, torch.Tensor]

    @property
    def length(self) -> int:
        """Tokens, those of pictures included."""
        return int(self.tokens["input_ids"].shape[1])

    def shape(self) -> tuple[Any, ...]:
        """Prompts with the same one can be answered in one batch."""
        return (*sorted(self.tokens), *sorted((name, tuple(t.shape[1:])) for name, t in self.others.items()))


class InputBuilder:
    """The processor of one checkpoint. Used in one thread at a time."""

    def __init__(self, processor: Any) -> None:
        self._processor = copy.deepcopy(processor)
        self.tokenizer = self._processor.tokenizer
        self.plain = LiteralTokenizer(self.tokenizer, [HIDDEN])
        self.tokenizer.add_special_tokens({"additional_special_tokens": [HIDDEN]}, replace_extra_special_tokens=False)
        self._hidden = self.tokenizer.convert_tokens_to_ids(HIDDEN)

    def prepare(self, chat: tuple[Message, ...]) -> ModelInput:
        texts = [block for message in chat for block in message.content if isinstance(block, str)]
        hide = any(map(self.plain.is_marked, texts))
        hidden: list[str] = []
        messages: list[dict[str, Any]] = []
        pictures: list[Any] = []
        for message in chat:
            content: list[dict[str, str]] = []
            for block in merge_adjacent_text(message.content):
                if isinstance(block, Image):
                    pictures.append(block.pixels)
                    content.append({"type": "image"})
                    continue
                if hide:
                    hidden.append(block)
                content.append({"type": "text", "text": HIDDEN if hide else block})
            messages.append({"role": message.role, "content": content})
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        found = self._processor(text=[text], images=pictures or None, return_tensors="pt", add_special_tokens=False)
        tokens = {name: t for name, t in found.items() if t.shape == found["input_ids"].shape}
        others = {name: t for name, t in found.items() if name not in tokens}
        return ModelInput(self._restore_text(tokens, hidden) if hide else tokens, others)

    def _restore_text(self, tokens: dict[str, torch.Tensor], hidden: list[str]) -> dict[str, torch.Tensor]:
        """Our token's places filled with those of the texts: ids, and what stands beside the ids of any text."""
        ids = tokens["input_ids"][0].tolist()
        texts = iter([self.plain.tokens(text) for text in hidden])
        whole: dict[str, list[int]] = {name: [] for name in tokens}
        for place, token in enumerate(ids):
            text = next(texts) if token == self._hidden else None
            for name, values in whole.items():
                value = int(tokens[name][0, place])
                if text is None:
                    values.append(value)
                else:
                    values += text if name == "input_ids" else [value] * len(text)
        return {name: torch.tensor([values], dtype=tokens[name].dtype) for name, values in whole.items()}


def batch_of(prompts: list[ModelInput], pad: int) -> dict[str, torch.Tensor]:
    """One model input of prompts with the same `shape()`, filled up on the left with `pad`."""
    longest = max(prompt.length for prompt in prompts)
    batch = {name: torch.cat([one.others[name] for one in prompts]) for name in prompts[0].others}
    for name in prompts[0].tokens:
        filling = pad if name == "input_ids" else 0
        rows = [torch.nn.functional.pad(p.tokens[name], (longest - p.length, 0), value=filling) for p in prompts]
        batch[name] = torch.cat(rows)
    return batch
