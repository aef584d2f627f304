"""The documents of a bench: those of a task, or drawn bar charts, as a task that needs no data set."""

import dataclasses
import functools
import io
import math
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from PIL import Image, ImageDraw

from lmms_eval_mai.paper.benchmarks import GENERIC
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.times.lengths import Plan

CHARTS = "bench_charts"
"""The name of the task with drawn charts."""
SQUARE = 32
"""Both sides are multiples of it, so that models of Qwen3-VL do not resize the image."""
BARS = 8


class Source(Protocol):
    """The first documents of a task."""

    @property
    def name(self) -> str:
        """The name of the task."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of the documents."""

    def open(self, number: int, config: Config) -> Sample:
        """Open the sample of a document. Blocks: run it in a thread. Raises a `SampleError`."""


@dataclass(frozen=True)
class Documents:
    """The documents of one run, with the plan of their answers."""

    source: Source
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
