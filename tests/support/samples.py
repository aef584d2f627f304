"""Samples and scripted engines for tests of the method."""

from collections.abc import Mapping
from typing import Any

from PIL import Image as PilImage

from lmms_eval_mai.contract import PROMPTS, Image, Message, Prompt, Sampling
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.errors import MissingAnswer
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.calls import Pair
from lmms_eval_mai.method.methods import MAI, Method
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


async def started_pair(*engines: Any, method: Method = MAI, **choices: Any) -> Pair:
    """Start a small and a large engine and return them as a pair. `choices`: fields of `Pair`."""
    for engine in engines:
        await engine.start()
    return Pair({engine.side: engine for engine in engines}, Settings(method), **choices)


async def scripted_pair(small: Any, large: Any, options: ScriptedOptions | None = None, **choices: Any) -> Pair:
    """Return a pair of started scripted engines, one for each script."""
    engines = [ScriptedEngine("small", small, options), ScriptedEngine("large", large, options)]
    return await started_pair(*engines, **choices)


def opened(request: Any, documents: Mapping[str, Any], repeat: int = 0) -> Sample:
    """Return the sample of a request of lmms-eval."""
    from lmms_eval_mai.harness.requests import open_sample, read_requests

    return open_sample(read_requests([request] * (repeat + 1), parse({}))[-1], documents)


def path(trace: Trace) -> list[str]:
    """Return the calls of a trace, in the order of their prompts."""
    return [f"{call.key.side} {call.key.prompt}" for call in trace.calls]
