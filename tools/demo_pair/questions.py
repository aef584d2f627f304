"""Random questions about the cells of an image. Each question has one exact answer."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from .shapes import COLOURS, EMPTY, KINDS, MOVES, SHAPES, SIDE, Category, Cells, Question, count, walk
from .thinking import solve

MIX: dict[Category, float] = {
    "yes_no": 0.14,
    "count": 0.15,
    "compare": 0.10,
    "where": 0.13,
    "path": 0.26,
    "choice": 0.22,
}
CHOICE_MIX: dict[Category, float] = {"path": 0.4, "count": 0.3, "where": 0.3}
"""Shares of categories in the multiple-choice questions of the training."""
TEST_CHOICE_MIX: dict[Category, float] = {"count": 0.5, "where": 0.5}
"""The same for the benchmark. Paths are left out: two models that are both wrong often choose the same of the four
letters by chance."""
MOVES_MIX = {1: 0.4, 2: 0.4, 3: 0.2}


def ask(rng: random.Random, cells: Cells, choice_mix: Mapping[Category, float] = CHOICE_MIX) -> Question:
    """Draw a question about these cells."""
    while True:
        category = rng.choices(list(MIX), list(MIX.values()))[0]
        mix = choice_mix if category == "choice" else {category: 1.0}
        question = _ask(rng.choices(list(mix), list(mix.values()))[0], rng, cells)
        if question is not None:
            return replace(question, options=_options(question, rng, cells)) if category == "choice" else question


def _ask(category: Category, rng: random.Random, cells: Cells) -> Question | None:
    """Draw a question with a free answer. Returns None if these cells allow no question of this category."""
    present = sorted({cell for cell in cells if cell != EMPTY})
    if category == "yes_no":
        subject = rng.choice(present if rng.random() < 0.5 else [kind for kind in KINDS if kind not in present])
        return Question(category, f"Is there a cell with a {subject}?", (subject,))
    if category == "count":
        subject = _countable(rng, present)
        return Question(category, f"How many cells hold a {_thing(subject)}?", (subject,))
    if category == "compare":
        return _ask_compare(rng, cells)
    if category == "where":
        row, column = rng.randrange(SIDE), rng.randrange(SIDE)
        return Question(category, f"What is in row {row + 1}, column {column + 1}?", place=(row, column))
    return _ask_path(rng, cells)


def _countable(rng: random.Random, present: list[str]) -> str:
    """Draw a kind, colour or shape. It is present in nine of ten cases; in the others it may be absent."""
    kind = rng.choice(present if rng.random() < 0.9 else KINDS)
    return rng.choice([kind, *kind.split()])


def _thing(subject: str) -> str:
    return f"{subject} shape" if subject in COLOURS else subject


def _ask_compare(rng: random.Random, cells: Cells) -> Question | None:
    """Draw a comparison of two colours or two shapes whose counts differ by two or more."""
    pairs = [
        (first, second)
        for group in (tuple(COLOURS), SHAPES)
        for first in group
        for second in group
        if abs(count(cells, first) - count(cells, second)) >= 2
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    return Question("compare", f"Do more cells hold a {_thing(first)} than a {_thing(second)}?", (first, second))


def _ask_path(rng: random.Random, cells: Cells) -> Question | None:
    """Draw a path of one to three steps from a shape that is present once to another shape. It enters no cell twice."""
    once = [kind for kind in KINDS if cells.count(kind) == 1]
    for _ in range(100 if once else 0):
        start = rng.choice(once)
        begin = divmod(cells.index(start), SIDE)
        moves = tuple(rng.choices(list(MOVES), k=rng.choices(list(MOVES_MIX), list(MOVES_MIX.values()))[0]))
        places = walk(begin, moves)
        if places is None or len({begin, *places}) <= len(places):
            continue
        row, column = places[-1]
        if cells[row * SIDE + column] == EMPTY:
            continue
        text = f"Start at the {start} and go {', then '.join(moves)}. What is there?"
        return Question("path", text, (start,), moves=moves)
    return None


def _options(question: Question, rng: random.Random, cells: Cells) -> tuple[str, ...]:
    """Draw four different answers in random order, one of them right.

    They are close numbers, or cells without common words, so that one word distinguishes them. Cells of the image have
    priority.
    """
    options = [solve(question, cells).answer]
    if question.category == "count":
        near = [str(number) for number in range(10) if 1 <= abs(number - int(options[0])) <= 3]
        options += rng.sample(near, 3)
    else:
        for cell in [*_shuffled(rng, set(cells)), *_shuffled(rng, KINDS)]:
            if len(options) < 4 and not {word for option in options for word in option.split()} & set(cell.split()):
                options.append(cell)
    rng.shuffle(options)
    return tuple(options)


def _shuffled(rng: random.Random, cells: Iterable[str]) -> list[str]:
    ordered = sorted(cells)
    rng.shuffle(ordered)
    return ordered
