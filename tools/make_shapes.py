"""Draw the 3,000 test documents of the `shapes` benchmark: task_configs/shapes/test.parquet.

    python tools/make_shapes.py task_configs/shapes/test.parquet

The file is part of the project and must not change. Run this tool only to change the benchmark itself.
"""

import argparse
import io
import random
from pathlib import Path
from typing import Any

import PIL.Image
from datasets import Dataset, Features, Image, Value
from demo_pair.questions import ask
from demo_pair.shapes import draw, random_cells
from demo_pair.thinking import solve

from lmms_eval_mai.harness.shapes import LETTERS

DOCUMENTS = 3000
SEED = "shapes test 3"
"""No seed of the training is this text, so the test images are not among the training images. The seeds with the
numbers 1 and 2 drew the tests of earlier versions of the benchmark."""


def make_rows(number: int, seed: str) -> list[dict[str, Any]]:
    """Return documents with question, answer, category, options A to D (empty for a free answer) and image as PNG."""
    rng = random.Random(seed)
    rows = []
    for index in range(number):
        cells = random_cells(rng)
        question = ask(rng, cells)
        options = dict(zip(LETTERS, question.options or [""] * len(LETTERS), strict=True))
        rows.append(
            {
                "id": index,
                "question": question.text,
                **options,
                "answer": solve(question, cells).answer,
                "category": "choice" if question.options else question.category,
                "image": {"bytes": _png(draw(cells, rng)), "path": None},
            }
        )
    return rows


def _png(image: PIL.Image.Image) -> bytes:
    """Return the image with a palette of its at most 16 colours. An RGB file would be 1.7 times as large."""
    number = len(image.getcolors() or [])
    with_palette = image.quantize(number, dither=PIL.Image.Dither.NONE)
    if with_palette.convert("RGB").tobytes() != image.tobytes():
        raise ValueError(f"The palette of {number} colours does not give the same image.")
    file = io.BytesIO()
    with_palette.save(file, "PNG", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    texts = ("question", *LETTERS, "answer", "category")
    features = Features({"id": Value("int32"), **{name: Value("string") for name in texts}, "image": Image()})
    Dataset.from_list(make_rows(DOCUMENTS, SEED), features=features).to_parquet(file)
    print(f"{file}: {DOCUMENTS} documents, {file.stat().st_size / 2**20:.2f} MiB")
