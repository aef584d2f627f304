"""The workload of `pipeline.py`: charts, a planned answer for every call, and engines that follow the plan.

Output lengths are those of ChartQA in Table 5 (2B S 3.5, 2B R 256.3, 8B S 3.5 tokens). Short answers and answers after
a transfer alternate between 3 and 4 tokens. Thinking has lengths from a log-normal distribution with sigma 0.35, scaled
to a mean of 256, because the paper gives means only. The exits are those of Table 10 in random order. All seeds are
fixed.
"""

import asyncio
import dataclasses
import functools
import io
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import planned_exits
from lmms_eval.api.instance import Instance
from PIL import Image, ImageDraw

from lmms_eval_mai.engines.base import SIDES, Call, CallKey, EngineConfig, Prompt, Sampling, Side, Stage
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.engines.vllm.engine import VllmEngine
from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.harness.tasks import doc_to_messages
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Exit, Sample
from lmms_eval_mai.paper.sample_run import Pair
from lmms_eval_mai.run.config import parse

SEED = 260404929
THINKING_TOKENS = 256
SIGMA = 0.35
TASK, SPLIT = "chartqa_r", "test"
PROMPT = {"benchmark": "chartqa", "variant": "r"}
# Each word is one token of the tiny pair, so n tokens of thinking are about n tokens of the transfer prompt.
WORDS = ["the", "image", "shows", "a", "chart", "is", "value", "in", "option", "answer", "step", "thinking", "question"]
ARGUMENTS = {"max_num_seqs": 32, "max_model_len": 2048}
"""The arguments of both engines. 32 is the paper's batch size (B.4)."""
CONFIG = parse({})


@dataclass(frozen=True)
class Step:
    """The planned answer of one call. The engine decodes exactly `tokens` tokens, and `text` replaces their text."""

    tokens: int
    text: str


@dataclass(frozen=True)
class Plan:
    """The planned answers of all calls of a run, and the exits of its samples."""

    exits: tuple[Exit, ...]
    steps: Mapping[tuple[int, Side, Stage], Step]

    def step(self, key: CallKey) -> Step:
        """Return the planned answer of one call."""
        return self.steps[key.doc_id, key.side, key.stage]


def make_plan(samples: int) -> Plan:
    """Plan a run. The large model's short answer is always 7; the small model's is 7 where the two must agree."""
    exits = planned_exits(samples, SEED)
    thinkers = [doc_id for doc_id, exit in enumerate(exits) if exit != "agree_short"]
    lengths = dict(zip(thinkers, _lengths(len(thinkers)), strict=True))
    steps: dict[tuple[int, Side, Stage], Step] = {}
    for doc_id, exit in enumerate(exits):
        few = 3 + doc_id % 2
        steps[doc_id, "large", "short"] = Step(few, "[[7]]")
        steps[doc_id, "small", "short"] = Step(few, "[[7]]" if exit == "agree_short" else "[[3]]")
        if exit != "agree_short":
            answer = "[[7]]" if exit == "agree_think" else "[[5]]"
            steps[doc_id, "small", "think"] = Step(lengths[doc_id], f"{_thinking(doc_id, lengths[doc_id])} {answer}")
        if exit == "transfer":
            steps[doc_id, "large", "transfer"] = Step(few, "6")
    return Plan(tuple(exits), steps)


def _lengths(count: int) -> list[int]:
    dice = random.Random(SEED)
    drawn = [dice.lognormvariate(0, SIGMA) for _ in range(count)]
    return [max(8, round(one * count / sum(drawn) * THINKING_TOKENS)) for one in drawn]


def _thinking(doc_id: int, tokens: int) -> str:
    return " ".join(random.Random(f"thinking {doc_id}").choices(WORDS, k=tokens))


def draw_charts(samples: int, run: int) -> list[bytes]:
    """Return bar charts of 100x100 to 300x200 pixels as PNG files. Each run has the same sizes and different bars."""
    return [_draw_chart(random.Random(f"size {i}"), random.Random(f"run {run} chart {i}")) for i in range(samples)]


def _draw_chart(size: random.Random, dice: random.Random) -> bytes:
    width, height, bars = size.randint(100, 300), size.randint(100, 200), 8
    step = (width - 16) // bars
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    for left in range(8, 8 + bars * step, step):
        colour = dice.randint(0, 255), dice.randint(0, 255), dice.randint(0, 255)
        pen.rectangle((left, dice.randint(16, height - 16), left + step - 3, height - 8), fill=colour)
    pen.text((10, 2), f"Sales {dice.randint(1900, 2100)}", fill="black")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@dataclass(frozen=True)
class Work:
    """The documents and the plan of one run."""

    charts: list[bytes]
    plan: Plan

    def __getitem__(self, doc_id: int) -> dict[str, Any]:
        """Return a document as lmms-eval's dataset does. Its image is decoded when the sample is opened."""
        question = f"What is the value of bar {doc_id % 8 + 1}?"
        return {"image": Image.open(io.BytesIO(self.charts[doc_id])), "question": question, "answer": "7"}

    def open(self, doc_id: int) -> Sample:
        """Open a sample with the package's own code. Blocks: run it in a thread."""
        messages = functools.partial(doc_to_messages, lmms_eval_specific_kwargs=PROMPT)
        request = Instance(
            request_type="generate_until",
            arguments=("", messages, {"max_new_tokens": 4096, "temperature": 0}, doc_id, TASK, SPLIT),
            idx=0,
            metadata={"task": TASK, "doc_id": doc_id, "repeats": 1, "mai": PROMPT},
        )
        return open_sample(request, 0, {TASK: {SPLIT: self}}, CONFIG)


async def prompts_of(sample: Sample, plan: Plan) -> list[Prompt]:
    """Return all prompts of a sample: run the cascade with scripted engines that give the planned answers at once."""
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Answer:
        prompts.append(prompt)
        return Answer(plan.step(prompt.key).text)

    small, large = (ScriptedEngine(side, script, ScriptedOptions(time_scale=0)) for side in SIDES)
    await small.start()
    await large.start()
    await cascade(sample, Pair(small, large))
    return prompts


class PlannedEngine(VllmEngine):
    """A vLLM engine that decodes the planned number of tokens and returns the planned text."""

    def __init__(self, side: Side, models: Mapping[Side, Path], plan: Plan) -> None:
        pair = {name: EngineConfig(name, "vllm", str(models[name]), ARGUMENTS) for name in SIDES}
        super().__init__(pair[side], pair["large" if side == "small" else "small"])
        self._planned = plan

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        step = self._planned.step(prompt.key)
        call = await super().generate(prompt, dataclasses.replace(sampling, max_tokens=step.tokens, ignore_eos=True))
        if call.output_tokens != step.tokens:
            raise RuntimeError(f"{prompt.key} decoded {call.output_tokens} tokens, not {step.tokens} as planned.")
        return dataclasses.replace(call, text=step.text)

    async def answer(self, prompts: list[Prompt]) -> None:
        """Answer those prompts that are for this engine, all at once."""
        mine = [prompt for prompt in prompts if prompt.key.side == self.side]
        await asyncio.gather(*(self.generate(prompt, Sampling(max_tokens=1)) for prompt in mine))
