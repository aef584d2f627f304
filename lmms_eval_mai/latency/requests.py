"""Requests of exact sizes to an engine, timed one at a time or all at once.

Each request has an image of its own, which is the first part of the prompt, so no cache has any part of it.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image

from lmms_eval_mai.contract import Call, CallKey, Engine, Image, Message, Prompt, Sampling
from lmms_eval_mai.errors import PromptTooLong

TASK = "profile"
WORDS = ("the", "a", "is", "in", "of", "and", "red", "what", "image", "shape")

ENDS = ("", ".", "a", "a.", "the image", "the image.", "A", "1", "1.", "12", "123")
"""Ends of a text, so that one of them gives the wanted number of tokens."""


class Requests:
    """Makes requests to one started engine."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self._engine = engine
        self._dice = random.Random(seed)
        self._noise: dict[int, Any] = {}
        self._others: dict[int, int] = {}
        """Width of the image -> tokens of the prompt that are neither image nor text: those of the template."""
        self._texts: dict[int, str] = {}
        """Number of tokens -> a text with so many."""
        self._number = 0

    async def call(self, image: int, text_tokens: int, output_tokens: int) -> Call:
        """Make one request with exactly `output_tokens` output tokens. Raises a `MaiError`."""
        if image not in self._others:
            await self._count_others(image)
        (call,) = await self._calls([self._prompt(image, self._text(image, text_tokens))], output_tokens)
        return call

    async def batch(self, number: int, image: int, text_tokens: int, output_tokens: int) -> tuple[float, Call]:
        """Make several requests at once. Returns the seconds from the first request to the end of the last one, and
        one of the calls. Raises a `MaiError`."""
        if image not in self._others:
            await self._count_others(image)
        prompts = [self._prompt(image, self._text(image, text_tokens)) for _ in range(number)]
        started_at = time.perf_counter()
        calls = await self._calls(prompts, output_tokens)
        return time.perf_counter() - started_at, calls[0]

    async def _calls(self, prompts: Sequence[Prompt], output_tokens: int) -> list[Call]:
        sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
        calls = await asyncio.gather(*(self._engine.generate(prompt, sampling) for prompt in prompts))
        for call in calls:
            if call.output_tokens != output_tokens:
                raise PromptTooLong(
                    f"The context of the model has space for {call.output_tokens} instead of {output_tokens} output "
                    f"tokens after a prompt of {call.prompt_tokens} tokens."
                )
        return calls

    async def _count_others(self, image: int) -> None:
        (call,) = await self._calls([self._prompt(image, WORDS[0])], 1)
        self._others[image] = prompt_size(call)[1] - self._count(WORDS[0])

    def _text(self, image: int, tokens: int) -> str:
        """Return a text for which the prompt has `tokens` tokens besides the image, or a few less if no text of these
        words has so many. The image makes each prompt new, so all prompts of a size have the same text."""
        wanted = max(1, tokens - self._others[image])
        if wanted in self._texts:
            return self._texts[wanted]
        words = random.Random(wanted).choices(WORDS, k=wanted)
        low, high = 1, wanted
        while low < high:  # the longest text that is not longer than wanted
            middle = (low + high + 1) // 2
            if self._count(" ".join(words[:middle])) <= wanted:
                low = middle
            else:
                high = middle - 1
        ends = (f"{' '.join(words[: low - less])} {end}" for less in (0, 1, 2) for end in ENDS)
        text = next((text for text in ends if self._count(text) == wanted), " ".join(words[:low]))
        self._texts[wanted] = text
        return text

    def _count(self, text: str) -> int:
        tokens = self._engine.count_tokens(text)
        assert tokens is not None, "vllm and transformers have a tokenizer"
        return tokens

    def _prompt(self, side: int, text: str) -> Prompt:
        self._number += 1
        key = CallKey(TASK, self._number, 0, "large", "task")
        return Prompt((Message("user", (self._image(side), text)),), key)

    def _image(self, side: int) -> Image:
        """Return noise with pixels of its own."""
        if side not in self._noise:
            self._noise[side] = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
        pixels = self._noise[side].copy()
        pixels[:8, :8] = np.frombuffer(self._dice.randbytes(192), dtype=np.uint8).reshape(8, 8, 3)
        return Image(PIL.Image.fromarray(pixels), f"{TASK}-{side}-{self._number}-{self._dice.random()}")


def prompt_size(call: Call) -> tuple[int, int]:
    """Return the image tokens and the other tokens of a call's prompt, as the engine counted them."""
    assert call.image_tokens is not None, "vllm and transformers report them"
    return call.image_tokens, call.prompt_tokens - call.image_tokens
