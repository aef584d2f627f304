"""Samples, and scripted engines that run a method on them."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from PIL import Image as PilImage

from lmms_eval_mai.contract import PROMPTS, SIDES, Image, Message, Prompt, Reply, Sampling, Side, TokenWeights
from lmms_eval_mai.engines.scripted import Answer, Script, ScriptedEngine
from lmms_eval_mai.errors import MissingAnswer, PromptTooLong
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.methods import MAI, METHODS, Method
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample, Settings, Trace
from lmms_eval_mai.run.config import parse

OWN_INSTRUCTION = "Answer with one word."
"""The format sentence of another lmms-eval task."""


def sample(
    benchmark: str = "pope",
    variant: str | None = "S",
    *,
    two_stage: bool = False,
    doc_id: int = 0,
    doc: Any = None,
    task: str | None = None,
) -> Sample:
    """Return a sample with a real image, as `open_sample` builds it."""
    rules = benchmark_of(benchmark)
    doc = doc or {"question": "Is there a dog in the image?"}
    image = Image(PilImage.new("RGB", (64, 48), "red"), f"image-{doc_id}")
    question = "Is there a dog in the image?\n"
    return Sample(
        task=task or f"{benchmark}_x",
        doc_id=doc_id,
        repeat=0,
        question=(Message("user", (image, question)),),
        doc=doc,
        benchmark=rules,
        answer_form=rules.answer_form(doc),
        variant=variant,  # type: ignore[arg-type]
        two_stage=two_stage,
        sampling=dict.fromkeys(PROMPTS, Sampling(max_tokens=64)),
        task_prompt=() if variant else (Message("user", (image, question + OWN_INSTRUCTION)),),
    )


class Recorder:
    """A script for the scripted engine, from a table of prompt -> answer or its text. Records every prompt."""

    def __init__(self, answers: Mapping[str, str | Answer]) -> None:
        self.answers = answers
        self.prompts: list[Prompt] = []

    def __call__(self, prompt: Prompt) -> Answer:
        self.prompts.append(prompt)
        if prompt.key.prompt not in self.answers:
            raise MissingAnswer(f"{prompt.key} was not expected")
        answer = self.answers[prompt.key.prompt]
        return answer if isinstance(answer, Answer) else Answer(answer, prompt_tokens=10, output_tokens=3, seconds=0.0)

    def prompt_of(self, name: str) -> str:
        """Return the text of the only prompt of this name."""
        (prompt,) = [prompt for prompt in self.prompts if prompt.key.prompt == name]
        return "".join(block for message in prompt.messages for block in message.content if isinstance(block, str))


LAYER = 3
"""The layer in which some words are heavier than others. In all other layers, all words have the same weight."""


class WordEngine(ScriptedEngine):
    """A scripted engine that gives attention weights and whose tokens are words with the space before them. The call's
    text has space for 100 of them, and a truncated thinking has its last 5."""

    def __init__(self, side: Side, script: Script, heavy: Mapping[str, float]) -> None:
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
        reply = await super().generate(prompt, sampling)
        if prompt.attention is None:
            return reply
        text = prompt.attention.text
        assert text and text in prompt.messages[-1].content  # a part of its own, so that its place is certain
        tokens = words(text)
        heavy = self._heavy if prompt.attention.layer == LAYER else {}
        return replace(reply, attention=TokenWeights(tokens, tuple(heavy.get(token.strip(), 0.1) for token in tokens)))

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        self.reserved.append(sampling.max_tokens)
        return "".join(words(thinking)[-5:]), len(words(thinking)) - 5


def words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\s*\S+|\s+$", text))


async def started_pair(*engines: Any, method: Method = MAI, **choices: Any) -> Pair:
    """Start a small and a large engine and return them as a pair. `choices`: fields of `Pair`."""
    for engine in engines:
        await engine.start()
    return Pair({engine.side: engine for engine in engines}, Settings(method), **choices)


class Run(NamedTuple):
    """One sample that was run: its trace, and the scripts and the large engine, which have recorded what they got."""

    trace: Trace
    small: Recorder
    large: Recorder
    engine: WordEngine


def run_method(
    method: Method | str,
    one: Sample,
    small: Mapping[str, str | Answer],
    large: Mapping[str, str | Answer],
    heavy: Mapping[str, float] | None = None,
    **choices: Any,
) -> Run:
    """Run one sample with these answers. `heavy`: weights of words. `choices`: fields of `Pair`."""
    scripts = Recorder(small), Recorder(large)
    engines = [WordEngine(side, script, heavy or {}) for side, script in zip(SIDES, scripts, strict=True)]
    chosen = METHODS[method] if isinstance(method, str) else method

    async def run() -> Trace:
        return await run_sample(one, await started_pair(*engines, method=chosen, **choices))

    return Run(asyncio.run(run()), *scripts, engines[1])


def opened(request: Any, documents: Mapping[str, Any], repeat: int = 0) -> Sample:
    """Return the sample of a request of lmms-eval."""
    from lmms_eval_mai.harness.requests import open_sample, read_requests

    return open_sample(read_requests([request] * (repeat + 1), parse({}))[-1], documents)


def path(trace: Trace) -> list[str]:
    """Return the calls of a trace, in the order of their prompts."""
    return [f"{call.key.side} {call.key.prompt}" for call in trace.calls]
