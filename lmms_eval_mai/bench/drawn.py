"""Documents with drawn bar charts, in the form of ChartQA's."""

import io
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

TASK, SPLIT = "chartqa_r", "test"
PROMPT = {"benchmark": "chartqa", "variant": "r"}
HOME = "lmms-lab-encoder/ChartQA"
"""The data set of the task, as a folder below the folder in which lmms-eval runs."""
SQUARE = 32
"""Both sides are multiples of it, so that models of Qwen3-VL do not resize the image."""
BARS = 8


def size_of(megapixels: float) -> tuple[int, int]:
    """Return the width and the height of an image, at least 64 x 64 px."""
    side = max(2, round((megapixels * 1e6) ** 0.5 / SQUARE)) * SQUARE
    return side, side


def draw_chart(size: tuple[int, int], seed: str) -> bytes:
    """Return a bar chart as a PNG file."""
    dice = random.Random(seed)
    width, height = size
    step = width // BARS
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for left in range(0, BARS * step, step):
        colour = dice.randint(0, 255), dice.randint(0, 255), dice.randint(0, 255)
        pen.rectangle((left + 2, dice.randint(height // 8, height - 8), left + step - 3, height - 4), fill=colour)
    pen.text((10, 2), f"Sales {dice.randint(1900, 2100)}", fill="black")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def question(number: int) -> str:
    """Return the question of a document."""
    return f"What is the value of bar {number % BARS + 1}?"


@dataclass(frozen=True)
class Charts:
    """Drawn documents, by number, as lmms-eval's data set has them."""

    files: tuple[bytes, ...]

    @classmethod
    def draw(cls, count: int, megapixels: float) -> "Charts":
        """Draw so many charts."""
        return cls(tuple(draw_chart(size_of(megapixels), f"chart {number}") for number in range(count)))

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a document. Its image is decoded when the sample is opened."""
        image = Image.open(io.BytesIO(self.files[number]))
        return {"image": image, "question": question(number), "answer": "7", "type": "human_test"}

    def write(self, folder: Path) -> None:
        """Write the data set of the task below a folder, so that lmms-eval loads it if it runs there."""
        from datasets import Dataset, Features, Value
        from datasets import Image as ImageColumn

        rows = [
            {"type": "human_test", "question": question(number), "answer": "7", "image": {"bytes": file, "path": None}}
            for number, file in enumerate(self.files)
        ]
        texts = {name: Value("string") for name in ("type", "question", "answer")}
        path = folder / HOME / "data" / "test.parquet"
        path.parent.mkdir(parents=True)
        Dataset.from_list(rows, features=Features({**texts, "image": ImageColumn()})).to_parquet(str(path))
        files = "data_files:\n  - split: test\n    path: data/test.parquet"
        (folder / HOME / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  {files}\n---\n")
