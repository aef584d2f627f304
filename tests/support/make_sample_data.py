"""Make small datasets in the layout of lmms-eval's own datasets, offline: DIR/lmms-lab-encoder/<Name>.

If lmms-eval runs in DIR, its tasks load these datasets instead of those on the hub. The tool draws the images and
derives the questions and answers from them. Nothing is from the real benchmarks, so no result on this data is a score.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image, ImageDraw
from support.tasks import IN_THE_DATA

COLOURS = {"red": "#c0392b", "green": "#27ae60", "blue": "#2980b9", "orange": "#e67e22"}
NAMES = [*COLOURS]
Row = dict[str, Any]


def draw_shapes(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Draw one to three coloured discs. Returns the image and the colours."""
    image = Image.new("RGB", (rng.choice([96, 128, 160]), rng.choice([96, 128])), "#f4f4f4")
    draw = ImageDraw.Draw(image)
    colours = rng.sample(NAMES, rng.randint(1, 3))
    for place, colour in enumerate(colours):
        left, top = 6 + 30 * place, rng.randint(6, 60)
        draw.ellipse((left, top, left + 24, top + 24), fill=COLOURS[colour])
    return image, colours


# The rows, without their images: of the colours in the image, the number of the row, and a generator for choices.


def pope(colours: list[str], number: int, rng: random.Random) -> Row:
    colour = rng.choice(NAMES)
    return {
        "question_id": str(number),
        "question": f"Is there a {colour} disc in the image?",
        "answer": "yes" if colour in colours else "no",
        "image_source": f"drawn_{number}",
        "category": "random",
    }


def chartqa(colours: list[str], number: int, rng: random.Random) -> Row:
    kind = "human_test" if number % 2 else "augmented_test"
    return {"type": kind, "question": "How many discs are shown?", "answer": str(len(colours))}


def mmmu(colours: list[str], number: int, rng: random.Random) -> Row:
    is_open = number % 3 == 2
    return {
        "id": f"validation_{('Art', 'Design', 'Physics')[number % 3]}_{number}",
        "question": "<image 1> How many discs are there?" if is_open else "Which colour does <image 1> show first?",
        "options": "[]" if is_open else str(NAMES),
        "question_type": "open" if is_open else "multiple-choice",
        "answer": str(len(colours)) if is_open else "ABCD"[NAMES.index(colours[0])],
        **dict.fromkeys(f"image_{i}" for i in range(2, 8)),
    }


def mmbench(colours: list[str], number: int, rng: random.Random) -> Row:
    options = NAMES[: 2 if number % 2 else 4]
    return {
        "index": number,
        "question": "Which colour is in the image?",
        "hint": "nan" if number % 2 else "Look at the discs.",
        "answer": "ABCD"[options.index(colours[0])] if colours[0] in options else "A",
        **dict(zip("ABCD", [*options, "nan", "nan"], strict=False)),
        **{"category": "colour", "L2-category": "attribute", "source": "drawn", "split": "dev"},
    }


def infovqa(colours: list[str], number: int, rng: random.Random) -> Row:
    answers = [str(len(colours)), f"{len(colours)}.0"]
    return {"questionId": str(number), "question": "How many discs are in the chart?", "answers": answers}


def realworldqa(colours: list[str], number: int, rng: random.Random) -> Row:
    if number % 2:
        return {"question": f"How many discs are in the image?\n\n{IN_THE_DATA['word']}", "answer": str(len(colours))}
    options = "\n".join(f"{letter}. {colour}" for letter, colour in zip("ABCD", COLOURS, strict=True))
    question = f"Which colour comes first?\n\n{options}\n{IN_THE_DATA['letter']}"
    return {"question": question, "answer": "ABCD"[NAMES.index(colours[0])]}


# Name on the hub -> function that makes a row, configuration, split, file.
DATASETS: dict[str, tuple[Callable[[list[str], int, random.Random], Row], str, str, str]] = {
    "POPE": (pope, "default", "test", "data/test.parquet"),
    "MMMU": (mmmu, "default", "validation", "data/validation.parquet"),
    "MMBench": (mmbench, "en", "dev", "en/dev.parquet"),
    "ChartQA": (chartqa, "default", "test", "data/test.parquet"),
    "DocVQA": (infovqa, "InfographicVQA", "validation", "InfographicVQA/validation.parquet"),
    "RealWorldQA": (realworldqa, "default", "test", "data/test.parquet"),
}


def make_data(folder: Path) -> Path:
    """Write 12 documents of each dataset below `folder`, unless they exist. Returns `folder`."""
    for name, (make_row, config, split, file) in DATASETS.items():
        home = folder / "lmms-lab-encoder" / name
        path = home / file
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        rng, made = random.Random(f"{name} 12"), []
        for number in range(12):
            image, colours = draw_shapes(rng)
            made.append({"image_1" if name == "MMMU" else "image": image, **make_row(colours, number, rng)})
        dataset = Dataset.from_list(made)
        dataset.to_parquet(str(path))
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {file}\n---\n"
        (home / "README.md").write_text(card + f"Drawn by tests/support/make_sample_data.py. Not {name}.\n")
    return folder
