"""The documents of a bench: those of a task, or drawn bar charts, as a task that needs no data set; and a planned
answer for every call, with the figures of one of the paper's benchmarks.

The planned lengths are those of Table 5 for the pair 2B and 8B, and the exits those of Table 10, in random order. The
paper has averages only. Thinking has lengths from a log-normal distribution with sigma 0.35. The documents on which the
models disagree have longer thinking: its mean is the one that the paper's MAI needs by Eq. 27 (Table 11;
docs/times.md). The other documents have shorter thinking, so that the mean over all documents is that of Table 5. All
seeds are fixed.
"""

import dataclasses
import functools
import io
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageDraw

from lmms_eval_mai.contract import Call, Engine, Prompt, Sampling, Side, Stage
from lmms_eval_mai.engines.arguments import did_you_mean
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.sample import EXITS, Exit, Sample
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.run.config import Config, parse

CHARTS = "bench_charts"
"""The name of the task with drawn charts."""
SQUARE = 32
"""Both sides are multiples of it, so that models of Qwen3-VL do not resize the image."""
BARS = 8


# --- forced output lengths and exits ---

SEED = 260404929
SIGMA = 0.35
NAMES: dict[Side, str] = {"small": "2B", "large": "8B"}
PREFIX = "paper:"
DISAGREEING = {"pope": 500.0, "mmbench_en_dev": 823.0, "mmmu_val": 3429.0, "chartqa": 317.0, "infovqa_val": 255.0}
"""Benchmark -> mean tokens of a thinking of the small model if the short answers disagree. RealWorldQA is left out: its
time in Table 11 contradicts Table 5."""
LEAST = 8
"""Tokens of the shortest thinking."""
# Each word is one token in most tokenizers, so n words of thinking are about n tokens of the transfer prompt.
WORDS = ["the", "image", "shows", "a", "chart", "is", "value", "in", "option", "answer", "step", "thinking", "question"]


@dataclass(frozen=True)
class Step:
    """The planned answer of one call. The engine decodes exactly `tokens` tokens, and `text` replaces their text."""

    tokens: int
    text: str


@dataclass(frozen=True)
class Plan:
    """The planned answers of all calls of a run, and the exits of its samples in the mode `cascade`."""

    exits: tuple[Exit, ...]
    steps: Mapping[tuple[int, Side, Stage], Step]


class PlannedModel:
    """Decodes the planned number of tokens and returns the planned text."""

    def __init__(self, model: Engine, plan: Plan) -> None:
        self._engine, self._plan = model, plan
        self.count_tokens, self.truncate_thinking = model.count_tokens, model.truncate_thinking

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        key = prompt.key
        step = self._plan.steps[key.doc_id, key.side, key.stage]
        sampling = dataclasses.replace(sampling, max_tokens=step.tokens, ignore_eos=True)
        call = await self._engine.generate(prompt, sampling)
        if call.output_tokens != step.tokens:
            raise MaiError(
                f"{key} decoded {call.output_tokens} tokens instead of {step.tokens}: the model's context is too "
                "short. Raise max_model_len, or choose other --lengths."
            )
        if (key.side, key.stage) == ("large", "short"):  # confident where the short answers agree
            agree = self._plan.steps[key.doc_id, "small", "short"].text == step.text
            call = dataclasses.replace(call, logprobs=None, answer_logprob=0.0 if agree else -99.0)
        return dataclasses.replace(call, text=step.text)


def benchmark_of(lengths: str) -> str | None:
    """Return the benchmark of `paper:BENCHMARK`. None for `own`: the models end their answers. Raises
    `ArgumentError`."""
    if lengths == "own":
        return None
    known = list(paper_numbers.load()["benchmarks"])
    name = lengths.removeprefix(PREFIX)
    if not lengths.startswith(PREFIX) or name not in known:
        choices = ", ".join(["own", *(PREFIX + one for one in known)])
        hint = did_you_mean(name, known)
        raise ArgumentError(f"--lengths {lengths} is unknown: choose one of {choices}.{hint}")
    return name


def make_plan(benchmark: str, samples: int) -> Plan:
    """Plan a run. The large model's short answer is always 7; the small model's is 7 where the two must agree. Exits
    have the proportions of Table 10; samples that are left over by rounding get the first exit."""
    documents = [_paper(10, "", benchmark, f"{exit}, documents") for exit in EXITS["cascade"]]
    counts = [round(count * samples / sum(documents)) for count in documents]
    counts[0] = samples - sum(counts[1:])
    exits = [exit for exit, count in zip(EXITS["cascade"], counts, strict=True) for _ in range(count)]
    random.Random(SEED).shuffle(exits)

    small, large = (_spread([1.0] * samples, _paper(5, name, benchmark, "S"), least=1) for name in NAMES.values())
    small_mean, large_mean = (_paper(5, name, benchmark, "R") for name in NAMES.values())
    longer = DISAGREEING.get(benchmark, small_mean)
    share = sum(documents[1:]) / sum(documents)
    shorter = (small_mean - share * longer) / (1 - share)
    agreeing = exits.count("agree_short")
    thinking = {True: iter(_drawn(agreeing, shorter)), False: iter(_drawn(samples - agreeing, longer))}

    steps: dict[tuple[int, Side, Stage], Step] = {}
    for doc_id, (exit, large_thinking) in enumerate(zip(exits, _drawn(samples, large_mean), strict=True)):
        tokens = next(thinking[exit == "agree_short"])
        words = " ".join(random.Random(f"thinking {doc_id}").choices(WORDS, k=tokens))
        steps[doc_id, "large", "short"] = Step(large[doc_id], "[[7]]")
        steps[doc_id, "small", "short"] = Step(small[doc_id], "[[7]]" if exit == "agree_short" else "[[3]]")
        steps[doc_id, "small", "think"] = Step(tokens, f"{words} {'[[5]]' if exit == 'transfer' else '[[7]]'}")
        steps[doc_id, "large", "think"] = Step(large_thinking, "[[7]]")
        steps[doc_id, "large", "transfer"] = Step(large[doc_id], "6")
    return Plan(tuple(exits), steps)


def _paper(number: int, row: str, benchmark: str, column: str) -> float:
    found = paper_numbers.number(number, row, benchmark, column)
    assert found is not None, "the paper has it for its six benchmarks"
    return found.value


def _drawn(count: int, mean: float) -> list[int]:
    dice = random.Random(SEED)
    return _spread([dice.lognormvariate(0, SIGMA) for _ in range(count)], mean, LEAST)


def _spread(weights: Sequence[float], mean: float, least: int) -> list[int]:
    """Return whole numbers in the proportions of the weights, at least `least`. Their mean is about `mean`."""
    scale = mean * len(weights) / (sum(weights) or 1.0)
    ends = [round(end) for end in accumulate((weight * scale for weight in weights), initial=0.0)]
    return [max(least, after - before) for before, after in pairwise(ends)]


# --- the documents ---


@dataclass(frozen=True)
class Documents:
    """The documents of one run, with the plan of their answers."""

    source: TaskDocuments
    count: int
    plan: Plan | None
    """None: the models end their answers themselves."""
    arguments: dict[str, Any]
    """Model arguments, from which the decoding follows."""

    def first(self, count: int) -> "Documents":
        """Return the first documents only."""
        return dataclasses.replace(self, count=min(count, self.count))

    def open(self, position: int) -> Sample:
        """Open a sample. With a plan, two answers agree if their texts are equal. Blocks: run it in a thread."""
        sample = self.source.open(self.source.numbers[position], self._config)
        if self.plan is None:
            return sample
        rules = dataclasses.replace(GENERIC, name=sample.benchmark.name)
        return dataclasses.replace(
            sample, doc_id=position, doc={}, benchmark=rules, variant="R", two_stage=False, own_prompt=()
        )

    def facts(self) -> dict[str, Any]:
        """Return what the times depend on, as plain data: the number of documents, width and height of the images of
        the first one in px, and how many documents have each planned exit."""
        parts = [part for message in self.open(0).question for part in message.content]
        sizes = [list(part.pixels.size) for part in parts if not isinstance(part, str)]
        exits = {} if self.plan is None else {"exits": dict(Counter(self.plan.exits))}
        return {"documents": self.count, "images_px": sizes, **exits}

    @functools.cached_property
    def _config(self) -> Config:
        return parse(self.arguments)


def side_of(megapixels: float) -> int:
    """Return the width and height of an image of about this size, at least 64 px."""
    return max(2, round(math.sqrt(megapixels * 1e6) / SQUARE)) * SQUARE


def draw_chart(side: int, seed: str) -> bytes:
    """Return a bar chart as a PNG file."""
    dice = random.Random(seed)
    image = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(image)
    step = side // BARS
    for left in range(0, BARS * step, step):
        colour = dice.randint(0, 255), dice.randint(0, 255), dice.randint(0, 255)
        pen.rectangle((left + 2, dice.randint(side // 8, side - 8), left + step - 3, side - 4), fill=colour)
    pen.text((10, 2), f"Sales {dice.randint(1900, 2100)}", fill="black")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_charts(folder: Path, count: int, megapixels: float) -> None:
    """Write the task `CHARTS` into a folder for `--include_path`: drawn charts with the Reasoning prompt of ChartQA."""
    from datasets import Dataset, Features, Value, disable_progress_bars
    from datasets import Image as ImageColumn

    disable_progress_bars()
    side = side_of(megapixels)
    rows = [
        {"type": "human_test", "question": f"What is the value of bar {number % BARS + 1}?", "answer": "7",
         "image": {"bytes": draw_chart(side, f"chart {number}"), "path": None}}
        for number in range(count)
    ]  # fmt: skip
    texts = {name: Value("string") for name in ("type", "question", "answer")}
    file = folder / "charts.parquet"
    Dataset.from_list(rows, features=Features({**texts, "image": ImageColumn()})).to_parquet(str(file))
    task = {
        "include": str(task_dir() / "chartqa" / "chartqa_r.yaml"),
        "task": CHARTS,
        "tag": CHARTS + "_tag",
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": str(folder / "cache")},
    }
    (folder / f"{CHARTS}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
