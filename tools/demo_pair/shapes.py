"""The images and questions of the `shapes` benchmark.

An image is a 3 x 3 grid of cells of 32 px. A cell is empty or has one of 16 kinds. A kind is a colour and a shape.
All drawing uses a given `random.Random`: the same state gives the same image and question.
"""

import random
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

from lmms_eval_mai.harness.shapes import LETTERS

SIDE, CELL = 3, 32
COLOURS = {"red": (214, 48, 49), "green": (39, 158, 79), "blue": (41, 98, 217), "yellow": (232, 190, 36)}
SHAPES = ("circle", "square", "triangle", "cross")
KINDS = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
EMPTY = "empty cell"
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Cells = tuple[str, ...]
"""The cells row by row: a kind or `EMPTY`."""

Category = Literal["yes_no", "count", "compare", "where", "path", "choice"]


@dataclass(frozen=True)
class Question:
    """A question. Its answer depends on the cells: see `thinking.solve`."""

    category: Category
    text: str
    subjects: tuple[str, ...] = ()
    """yes_no, count: the subject to count ("red circle", "red", "circle"). compare: two of them. path: its start."""
    place: tuple[int, int] = (0, 0)
    """where: row and column of the cell, from 0."""
    moves: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """The answers A, B, C and D. Empty for a question with a free answer."""


def matches(cell: str, subject: str) -> bool:
    """Return whether a cell matches a subject: a kind, a colour or a shape."""
    return cell == subject or subject in cell.split()


def count(cells: Cells, subject: str) -> int:
    """Count the cells that match a subject."""
    return sum(matches(cell, subject) for cell in cells)


def walk(start: tuple[int, int], moves: tuple[str, ...]) -> list[tuple[int, int]] | None:
    """Return the cells of a path after its start, or None if the path leaves the grid."""
    row, column = start
    places = []
    for move in moves:
        row, column = row + MOVES[move][0], column + MOVES[move][1]
        if not (0 <= row < SIDE and 0 <= column < SIDE):
            return None
        places.append((row, column))
    return places


def full_text(question: Question) -> str:
    """Return the question as in the task: with its options, one per line, and a line break at the end."""
    lines = [question.text, *(f"{letter}. {option}" for letter, option in zip(LETTERS, question.options, strict=False))]
    return "\n".join(lines) + "\n"


# --- Images -----------------------------------------------------------------------------------------


def random_cells(rng: random.Random) -> Cells:
    """Draw 5 to 9 shapes. Every image has different frequent colours and shapes, so that counts differ."""
    colours = [rng.gammavariate(0.8, 1) + 0.02 for _ in COLOURS]
    shapes = [rng.gammavariate(0.8, 1) + 0.02 for _ in SHAPES]
    filled = rng.randint(5, 9)
    cells = [
        f"{colour} {shape}"
        for colour, shape in zip(
            rng.choices(list(COLOURS), colours, k=filled), rng.choices(SHAPES, shapes, k=filled), strict=True
        )
    ]
    cells += [EMPTY] * (SIDE * SIDE - filled)
    rng.shuffle(cells)
    return tuple(cells)


def draw(cells: Cells, rng: random.Random) -> Image.Image:
    """Draw the image, 96 x 96 px. Sizes, positions and shades vary a little."""
    image = Image.new("RGB", (SIDE * CELL, SIDE * CELL), (244, 244, 240))
    pen = ImageDraw.Draw(image)
    for number, cell in enumerate(cells):
        row, column = divmod(number, SIDE)
        pen.rectangle(
            (column * CELL, row * CELL, column * CELL + CELL - 1, row * CELL + CELL - 1), outline=(214, 214, 210)
        )
        if cell == EMPTY:
            continue
        colour, shape = cell.split()
        fill = tuple(min(255, max(0, part + rng.randint(-18, 18))) for part in COLOURS[colour])
        size = rng.randint(16, 24)
        x = column * CELL + rng.randint(3, CELL - size - 3)
        y = row * CELL + rng.randint(3, CELL - size - 3)
        _draw_shape(pen, shape, x, y, size, fill)
    return image


def _draw_shape(pen: ImageDraw.ImageDraw, shape: str, x: int, y: int, size: int, fill: tuple[int, ...]) -> None:
    right, bottom = x + size, y + size
    if shape == "circle":
        pen.ellipse((x, y, right, bottom), fill=fill)
    elif shape == "square":
        pen.rectangle((x + 1, y + 1, right - 1, bottom - 1), fill=fill)
    elif shape == "triangle":
        pen.polygon([(x + size // 2, y), (x, bottom), (right, bottom)], fill=fill)
    else:
        arm = size // 3
        pen.rectangle((x + arm, y, right - arm, bottom), fill=fill)
        pen.rectangle((x, y + arm, right, bottom - arm), fill=fill)
