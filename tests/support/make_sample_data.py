"""Make small datasets in the layout of lmms-eval's own datasets, offline: DIR/lmms-lab-encoder/<Name>.

If lmms-eval runs in DIR, its tasks load these datasets instead of those on the hub. The tool draws the images and
derives the questions and answers from them. Nothing is from the real benchmarks, so no result on this data is a score.
"""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image, ImageDraw

COLOURS = {"red": "#c0392b", "green": "#27ae60", "blue": "#2980b9", "orange": "#e67e22"}
Row = dict[str, Any]


def draw_shapes(rng: random.Random) -> tuple[Image.Image, list[str]]:
    """Draw one to three coloured discs. Returns the image and the colours."""
    image = Image.new("RGB", (rng.choice([96, 128, 160]), rng.choice([96, 128])), "#f4f4f4")
    draw = ImageDraw.Draw(image)
    colours = rng.sample(list(COLOURS), rng.randint(1, 3))
    for place, colour in enumerate(colours):
        left, top = 6 + 30 * place, rng.randint(6, 60)
        draw.ellipse((left, top, left + 24, top + 24), fill=COLOURS[colour])
    return image, colours


def draw_bars(rng: random.Random) -> tuple[Image.Image, list[int]]:
    """Draw a bar chart with the values above its bars. Returns the image and the values."""
    values = [rng.randint(5, 95) for _ in range(rng.randint(2, 5))]
    image = Image.new("RGB", (40 + 40 * len(values), 140), "white")
    draw = ImageDraw.Draw(image)
    for place, value in enumerate(values):
        left = 20 + 40 * place
        draw.rectangle((left, 130 - value, left + 24, 130), fill=list(COLOURS.values())[place % 4])
        draw.text((left, 116 - value), str(value), fill="black")
    return image, values


def pope(rng: random.Random, number: int) -> Row:
    image, colours = draw_shapes(rng)
    colour = rng.choice(list(COLOURS))
    return {
        "id": str(number),
        "question_id": str(number),
        "question": f"Is there a {colour} disc in the image?",
        "answer": "yes" if colour in colours else "no",
        "image_source": f"drawn_{number}",
        "image": image,
        "category": "random",
    }


def chartqa(rng: random.Random, number: int) -> Row:
    image, values = draw_bars(rng)
    question, answer = rng.choice(
        [("How many bars are shown?", str(len(values))), ("What is the largest value?", str(max(values)))]
    )
    kind = "human_test" if number % 2 else "augmented_test"
    return {"type": kind, "question": question, "answer": answer, "image": image}


def mmmu(rng: random.Random, number: int) -> Row:
    image, colours = draw_shapes(rng)
    open_question = number % 3 == 2
    options = list(COLOURS)
    row: Row = {f"image_{i}": None for i in range(1, 8)}
    row |= {
        "id": f"validation_{('Art', 'Design', 'Physics')[number % 3]}_{number}",
        "question": "<image 1> How many discs are there?"
        if open_question
        else "Which colour does <image 1> show first?",
        "options": "[]" if open_question else str(options),
        "question_type": "open" if open_question else "multiple-choice",
        "answer": str(len(colours)) if open_question else "ABCD"[options.index(colours[0])],
        "image_1": image,
        "explanation": "",
        "img_type": "['Pictures']",
        "topic_difficulty": "Easy",
        "subfield": "Drawing",
    }
    return row


def mmbench(rng: random.Random, number: int) -> Row:
    image, colours = draw_shapes(rng)
    options = list(COLOURS)[: 2 if number % 2 else 4]
    return {
        "index": number,
        "question": "Which colour is in the image?",
        "hint": "nan" if number % 2 else "Look at the discs.",
        "answer": "ABCD"[options.index(colours[0])] if colours[0] in options else "A",
        **{letter: dict(zip("ABCD", options, strict=False)).get(letter, "nan") for letter in "ABCD"},
        "category": "colour",
        "L2-category": "attribute",
        "source": "drawn",
        "split": "dev",
        "comment": "nan",
        "image": image,
    }


def infovqa(rng: random.Random, number: int) -> Row:
    image, values = draw_bars(rng)
    return {
        "questionId": str(number),
        "question": "What is the smallest value in the chart?",
        "answers": [str(min(values)), f"{min(values)}.0"],
        "image": image,
        "answer_type": ["single span"],
        "image_url": "",
        "operation_reasoning": [],
        "ocr": "",
        "data_split": "val",
    }


def realworldqa(rng: random.Random, number: int) -> Row:
    image, colours = draw_shapes(rng)
    letters = "Please answer directly with only the letter of the correct option and nothing else."
    word = "Please answer directly with a single word or number."
    if number % 2:
        question = f"How many discs are in the image?\n\n{word}"
        return {"image": image, "question": question, "answer": str(len(colours)), "image_path": f"{number}.png"}
    options = "\n".join(f"{letter}. {colour}" for letter, colour in zip("ABCD", COLOURS, strict=True))
    question = f"Which colour comes first?\n\n{options}\n{letters}"
    answer = "ABCD"[list(COLOURS).index(colours[0])]
    return {"image": image, "question": question, "answer": answer, "image_path": f"{number}.png"}


# Name on the hub -> function that makes a row, configuration, split, file.
DATASETS: dict[str, tuple[Callable[[random.Random, int], Row], str, str, str]] = {
    "POPE": (pope, "default", "test", "data/test.parquet"),
    "MMMU": (mmmu, "default", "validation", "data/validation.parquet"),
    "MMBench": (mmbench, "en", "dev", "en/dev.parquet"),
    "ChartQA": (chartqa, "default", "test", "data/test.parquet"),
    "DocVQA": (infovqa, "InfographicVQA", "validation", "InfographicVQA/validation.parquet"),
    "RealWorldQA": (realworldqa, "default", "test", "data/test.parquet"),
}


def make_data(folder: Path, rows: int = 12, only: Iterable[str] = DATASETS) -> Path:
    """Write `rows` documents of each dataset below `folder`, unless they exist. Returns `folder`."""
    for name in only:
        make_row, config, split, file = DATASETS[name]
        home = folder / "lmms-lab-encoder" / name
        path = home / file
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = random.Random(f"{name} {rows}")
        dataset = Dataset.from_list([make_row(rng, number) for number in range(rows)])
        dataset.to_parquet(str(path))
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {file}\n---\n"
        (home / "README.md").write_text(card + f"Drawn by tests/support/make_sample_data.py. Not {name}.\n")
    return folder
