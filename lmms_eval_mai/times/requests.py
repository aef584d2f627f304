"""Requests of exact sizes to an engine, timed one at a time or all at once.

Each request has an image of its own, which is the first part of the prompt, so no cache has any part of it.
"""

import asyncio
import bisect
import functools
import random
import time
from collections.abc import Sequence

import numpy as np
import PIL.Image

from lmms_eval_mai.contract import Call, CallKey, Engine, Image, Message, Prompt, Sampling
from lmms_eval_mai.errors import PromptTooLong

TASK = "profile"
WORD = " red"
"""A token in most tokenizers."""


class Noise:
    """Makes square images of noise. Each has some pixels of its own."""

    def __init__(self) -> None:
        self._dice = np.random.default_rng(0)
        self._pixels = functools.cache(lambda side: self._dice.integers(0, 256, (side, side, 3), dtype=np.uint8))

    def image(self, side: int) -> PIL.Image.Image:
        """Return a new image."""
        pixels = self._pixels(side).copy()
        pixels[:8, :8] = self._dice.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        return PIL.Image.fromarray(pixels)


class Requests:
    """Makes requests to one started engine, which must have a tokenizer and report image tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._noise, self._number = engine, Noise(), 0
        self._others: dict[int, int] = {}
        """Width of the image -> tokens of the prompt that are neither image nor text: those of the template."""
        self._texts: dict[int, str] = {}
        """Number of tokens -> a text with so many."""

    async def make(self, number: int, image: int, text_tokens: int, output_tokens: int) -> tuple[float, Call]:
        """Make so many requests at once, each with exactly `output_tokens` output tokens. Returns the seconds from the
        first request to the end of the last one, and one of the calls. Raises a `MaiError`."""
        if image not in self._others:
            _, call = await self._timed([self._prompt(image, WORD)], 1)
            self._others[image] = sizes(call)["text_tokens"] - self._count(WORD)
        # The image makes each prompt new, so all prompts of a size have the same text.
        text = self._text(max(1, text_tokens - self._others[image]))
        return await self._timed([self._prompt(image, text) for _ in range(number)], output_tokens)

    async def _timed(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[float, Call]:
        sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
        began = time.perf_counter()
        calls = await asyncio.gather(*(self._engine.generate(prompt, sampling) for prompt in prompts))
        seconds = time.perf_counter() - began
        for call in calls:
            if call.output_tokens != output_tokens:
                raise PromptTooLong(
                    f"The context of the model has space for {call.output_tokens} instead of {output_tokens} output "
                    f"tokens after a prompt of {call.prompt_tokens} tokens."
                )
        return seconds, calls[0]

    def _text(self, tokens: int) -> str:
        """Return the longest text that has at most so many tokens."""
        if tokens not in self._texts:
            words = bisect.bisect_right(range(2, tokens + 1), tokens, key=lambda number: self._count(WORD * number))
            self._texts[tokens] = WORD * (words + 1)
        return self._texts[tokens]

    def _count(self, text: str) -> int:
        tokens = self._engine.count_tokens(text)
        assert tokens is not None
        return tokens

    def _prompt(self, side: int, text: str) -> Prompt:
        self._number += 1
        image = Image(self._noise.image(side), f"{TASK}-{side}-{self._number}-{random.random()}")
        return Prompt((Message("user", (image, text)),), CallKey(TASK, self._number, 0, "large", "task"))


def sizes(call: Call) -> dict[str, int]:
    """Return the image tokens and the other tokens of a call's prompt, as the engine counted them."""
    assert call.image_tokens is not None
    return {"image_tokens": call.image_tokens, "text_tokens": call.prompt_tokens - call.image_tokens}
