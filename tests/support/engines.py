"""Engines on tiny checkpoints, and prompts for them."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image as PilImage

from lmms_eval_mai.contract import CallKey, Engine, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.scripted import Answer
from lmms_eval_mai.errors import MissingAnswer
from lmms_eval_mai.run.config import parse

R = TypeVar("R")
GREEDY = Sampling(max_tokens=12, ignore_eos=True)


class LoopThread:
    """An event loop that runs in its own thread until `close`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.run(self.cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def cancel_others(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@dataclass
class Running:
    """A started engine on its own event loop."""

    engine: Any
    loop: LoopThread

    def generate(self, *prompts: Prompt, sampling: Sampling = GREEDY) -> list[Any]:
        """Make one call per prompt, all at once. Errors are returned like answers."""

        async def generate_all() -> list[Any]:
            return await asyncio.gather(*(self.engine.generate(p, sampling) for p in prompts), return_exceptions=True)

        return self.loop.run(generate_all())


def engine_of(**arguments: Any) -> Any:
    """Return the engine `small` of these model arguments."""
    (small, *_) = parse({"method": "small", **arguments}).engines()
    return build(small)


@contextlib.contextmanager
def started(engine: Any, loop: LoopThread) -> Iterator[Running]:
    """Start an engine for a `with` block."""
    try:
        loop.run(engine.start())
        yield Running(engine, loop)
    finally:
        loop.run(engine.close())


def make_image(colour: str = "red", size: tuple[int, int] = (96, 64), name: str | None = None) -> Image:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    pixels = PilImage.fromarray(noise)
    pixels.paste(colour, (8, 8, size[0] // 2, size[1] // 2))
    return Image(pixels, name or f"{colour}-{size}")


def prompt(doc_id: int, *content: Any) -> Prompt:
    return Prompt((Message("user", content),), CallKey("contract", doc_id, 0, "small", "simple"))


def question(doc_id: int) -> Prompt:
    return prompt(
        doc_id, make_image(), f"Is number {doc_id} in the image?\n", "Answer the question using a single word."
    )


def answer(prompt: Prompt) -> Answer:
    """A script: answers every prompt except those with the word `unanswerable`."""
    if "unanswerable" in str(prompt.messages[-1].content[-1]):
        raise MissingAnswer(f"{prompt.key} has no answer")
    return Answer(f"answer {prompt.key.doc_id}", prompt_tokens=20, output_tokens=12, ttft_s=0.01, seconds=0.02)


def vllm_engine(tiny_pair: tuple[Path, Path], side: str = "small") -> Engine:
    config = parse({"small": str(tiny_pair[0]), "large": str(tiny_pair[1]), "dtype": "float32"})
    small, large = config.engines()
    return build(small, large) if side == "small" else build(large, small)


def processor_inputs(processor: Any, asked: Prompt) -> Any:
    """Return what a checkpoint's own processor makes of a prompt."""
    content = [
        {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part}
        for part in asked.messages[0].content
    ]
    images = [part.pixels for part in asked.messages[0].content if isinstance(part, Image)]
    chat = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return processor(text=[text], images=images or None, return_tensors="pt", add_special_tokens=False)
