"""Draw the development set of the `shapes` benchmark.

    python -m experiments.demo_pair.make_shapes dev    # 1,000 documents, as the tasks shapes_dev_...
    lmms-eval --include_path dev --tasks shapes_dev_s --model mai_cascade --model_args small=DIR/small,large=DIR/large

The development set has its own seed, so the difficulty of the benchmark, the training and thresholds may be chosen by
it. `make_rows(3000, SEED)` draws the test documents again: task_configs/shapes/test.parquet, which must not change.
"""

import argparse
import io
import random
from pathlib import Path
from typing import Any

import PIL.Image
import yaml
from datasets import Dataset, Features, Image, Value

from experiments.demo_pair.questions import ask
from experiments.demo_pair.shapes import LETTERS, draw, random_cells
from experiments.demo_pair.thinking import solve

TASKS = Path(__file__).resolve().parents[2] / "task_configs" / "shapes"
SEED = "shapes test 3"
"""No seed of the training is this text, so the test images are not among the training images. The seeds with the
numbers 1 and 2 drew the tests of earlier versions of the benchmark."""
DEVELOPMENT_SEED = "shapes development"


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


def write_development(folder: Path, number: int) -> None:
    """Write the development set and its tasks, which are those of `shapes` with another name and other documents."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "test.parquet"
    for included in TASKS.glob("*.yaml"):
        name = included.stem.replace("shapes_", "shapes_dev_")
        task = {"include": str(included), "task": name, "dataset_kwargs": {"data_files": {"test": str(file)}}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    texts = ("question", *LETTERS, "answer", "category")
    features = Features({"id": Value("int32"), **{name: Value("string") for name in texts}, "image": Image()})
    Dataset.from_list(make_rows(number, DEVELOPMENT_SEED), features=features).to_parquet(file)
    print(f"{file}: {number} documents, {file.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1000)
    given = parser.parse_args()
    write_development(given.folder, given.documents)
