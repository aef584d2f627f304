"""The images and questions of the `shapes` benchmark.

An image is a 3 x 3 grid of cells of 32 px. A cell is empty or has one of 24 kinds. A kind is a colour and a shape.
Shapes may be small, and dots and lines in their colours lie over them: a weak vision tower misreads some shapes.
All drawing uses a given `random.Random`: the same state gives the same image and question.
"""

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

SIDE, CELL = 3, 32
COLOURS = {"red": (214, 48, 49), "green": (39, 158, 79), "blue": (41, 98, 217), "yellow": (232, 190, 36)}
SHAPES = ("circle", "square", "triangle", "cross", "diamond", "ring")
KINDS = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
EMPTY = "empty cell"
BACKGROUND = (244, 244, 240)
SHADE = 30
"""The largest difference between the colour of a shape and `COLOURS`, in each of red, green and blue."""
SIZES = 9, 22
"""The smallest and the largest size of a shape in px."""
LINES, DOTS = 3, 0.05
"""Lines over an image, and the share of its pixels that are covered by dots."""
LETTERS = "ABCD"
"""The letters of the options."""
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
LEADS = {"red": "up", "green": "down", "blue": "left", "yellow": "right"}
"""The move to which the colour of a shape leads on a path."""
NUMBERS = ("one step", "two steps", "three steps", "four steps", "five steps", "six steps")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Names of the steps of a path in the thinking."""

Cells = tuple[str, ...]
"""The cells row by row: a kind or `EMPTY`."""

Category = Literal["yes_no", "count", "compare", "where", "path", "choice"]


@dataclass(frozen=True)
class Question:
    """A question. Its answer depends on the cells: see `thinking.solve`."""

    category: Category
    text: str
    subjects: tuple[str, ...] = ()
    """yes_no, count: the subject to count ("red circle", "red", "circle", "red or circle"). compare: two of them."""
    place: tuple[int, int] = (0, 0)
    """where: row and column of the cell, from 0. path: those of its start."""
    steps: int = 0
    """path: its number of steps."""
    options: tuple[str, ...] = ()
    """The answers A, B, C and D. Empty for a question with a free answer."""


def matches(cell: str, subject: str) -> bool:
    """Return whether a cell matches a subject: a kind, a colour, a shape, or one of two colours or shapes."""
    return cell == subject or not set(subject.split(" or ")).isdisjoint(cell.split())


def count(cells: Cells, subject: str) -> int:
    """Count the cells that match a subject."""
    return sum(matches(cell, subject) for cell in cells)


def walk(start: tuple[int, int], cells: Cells, steps: int) -> list[tuple[int, int]] | None:
    """Return the places of a path: its start, and the place after each step. None if a step begins in an empty cell.

    A path over an edge goes on at the opposite edge. Where a step leads depends on the cell that the step before it
    reached, so the end is not a sum of moves.
    """
    places = [start]
    for _ in range(steps):
        row, column = places[-1]
        cell = cells[row * SIDE + column]
        if cell == EMPTY:
            return None
        down, right = MOVES[LEADS[cell.split()[0]]]
        places.append(((row + down) % SIDE, (column + right) % SIDE))
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
    """Draw the image, 96 x 96 px. Sizes, positions and shades vary. Lines and dots are drawn last."""
    image = Image.new("RGB", (SIDE * CELL, SIDE * CELL), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for number, cell in enumerate(cells):
        row, column = divmod(number, SIDE)
        pen.rectangle(
            (column * CELL, row * CELL, column * CELL + CELL - 1, row * CELL + CELL - 1), outline=(214, 214, 210)
        )
        if cell == EMPTY:
            continue
        colour, shape = cell.split()
        fill = tuple(min(255, max(0, part + rng.randint(-SHADE, SHADE))) for part in COLOURS[colour])
        size = rng.randint(*SIZES)
        x = column * CELL + rng.randint(3, CELL - size - 3)
        y = row * CELL + rng.randint(3, CELL - size - 3)
        _draw_shape(pen, shape, x, y, size, fill)
    clutter = [*COLOURS.values(), BACKGROUND, BACKGROUND]
    for _ in range(LINES):
        ends = [rng.randrange(SIDE * CELL) for _ in range(4)]
        pen.line(ends, fill=rng.choice(clutter), width=rng.randint(1, 2))
    return _with_dots(image, np.array(clutter, dtype=np.uint8), np.random.default_rng(rng.getrandbits(64)))


def _with_dots(image: Image.Image, colours: np.ndarray, rng: np.random.Generator) -> Image.Image:
    pixels = np.array(image)
    dots = rng.random(pixels.shape[:2]) < DOTS
    pixels[dots] = colours[rng.integers(0, len(colours), int(dots.sum()))]
    return Image.fromarray(pixels)


def _draw_shape(pen: ImageDraw.ImageDraw, shape: str, x: int, y: int, size: int, fill: tuple[int, ...]) -> None:
    right, bottom = x + size, y + size
    middle = x + size // 2, y + size // 2
    match shape:
        case "circle":
            pen.ellipse((x, y, right, bottom), fill=fill)
        case "ring":
            pen.ellipse((x, y, right, bottom), outline=fill, width=max(2, size // 5))
        case "square":
            pen.rectangle((x + 1, y + 1, right - 1, bottom - 1), fill=fill)
        case "triangle":
            pen.polygon([(middle[0], y), (x, bottom), (right, bottom)], fill=fill)
        case "diamond":
            pen.polygon([(middle[0], y), (right, middle[1]), (middle[0], bottom), (x, middle[1])], fill=fill)
        case _:
            arm = size // 3
            pen.rectangle((x + arm, y, right - arm, bottom), fill=fill)
            pen.rectangle((x, y + arm, right, bottom - arm), fill=fill)
