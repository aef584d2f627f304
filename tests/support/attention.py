"""A scripted engine that gives attention weights and has a context."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from support.samples import started_pair

from lmms_eval_mai.contract import Prompt, Reply, Sampling, Side, TokenWeights
from lmms_eval_mai.engines.scripted import ScriptedEngine
from lmms_eval_mai.errors import PromptTooLong
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.sparse import Sparse

LAYER = 3
"""The layer in which some words are heavier than others. In all other layers, all words have the same weight."""


class AttentiveEngine(ScriptedEngine):
    """A scripted engine whose tokens are words with the space before them. Its tokenizer counts words. The call's text
    has space for 100 of them, and a truncated thinking has its last 5."""

    def __init__(self, side: Side, script: Callable[[Prompt], Any], heavy: Mapping[str, float]) -> None:
        """`heavy`: weight of words in `LAYER`. All other words have 0.1."""
        super().__init__(side, script)
        self._heavy = heavy
        self.reserved: list[int] = []
        """The space for the answer at each truncation."""

    def count_tokens(self, text: str) -> int | None:
        return len(words(text))

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        if sum(len(words(part)) for part in prompt.messages[-1].content if isinstance(part, str)) > 100:
            raise PromptTooLong(f"{prompt.key}: does not fit")
        call = await super().generate(prompt, sampling)
        if prompt.attention is None:
            return call
        text = prompt.attention.text
        assert text and text in prompt.messages[-1].content  # a part of its own, so that its place is certain
        tokens = words(text)
        heavy = self._heavy if prompt.attention.layer == LAYER else {}
        return replace(call, attention=TokenWeights(tokens, tuple(heavy.get(token.strip(), 0.1) for token in tokens)))

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        self.reserved.append(sampling.max_tokens)
        return "".join(words(thinking)[-5:]), len(words(thinking)) - 5


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+|\s+$", text))


async def attentive_pair(small: Any, large: Any, heavy: Mapping[str, float], **choices: Any) -> Pair:
    """Return a pair of started engines, one for each script. `choices`: fields of `Sparse` or of `Pair`. The
    small model's `[[answer]]` is not transferred, unless they say it."""
    sparse = {name: choices.pop(name) for name in list(choices) if name in Sparse.__dataclass_fields__}
    engines = AttentiveEngine("small", small, heavy), AttentiveEngine("large", large, heavy)
    defaults = {"sparse": Sparse(**{"layer": LAYER, **sparse}), "transfer_answer": "cut"}
    return await started_pair(*engines, **{**defaults, **choices})
