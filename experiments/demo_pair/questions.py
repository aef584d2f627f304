"""Random questions about the cells of an image. Each question has one exact answer."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from .shapes import (
    COLOURS,
    EMPTY,
    KINDS,
    LEADS,
    NUMBERS,
    SHAPES,
    SIDE,
    Category,
    Cells,
    Question,
    count,
    walk,
)
from .thinking import solve

Value = TypeVar("Value")

MIX: dict[Category, float] = {
    "yes_no": 0.15,
    "count": 0.18,
    "compare": 0.12,
    "where": 0.15,
    "path": 0.26,
    "choice": 0.23,
}
CHOICE_MIX: dict[Category, float] = {"path": 0.35, "count": 0.3, "where": 0.35}
"""Shares of categories in the multiple-choice questions."""
STEPS_MIX = {1: 0.1, 2: 0.4, 3: 2.0, 4: 4.0, 5: 6.0, 6: 6.0}
"""Weights of the numbers of steps of a path, if the image has paths of these lengths. Long paths are rare in images."""
RULE_TEXT = (
    f"{', '.join(f'{colour} leads {move}' for colour, move in LEADS.items())}, and over an edge to the opposite side."
).capitalize()
"""The first sentence of a question about a path."""
TWO_CONDITIONS = 0.35
"""Share of counting questions and comparisons in which a subject is one of two colours or shapes."""


def ask(rng: random.Random, cells: Cells) -> Question:
    """Draw a question about these cells."""
    while True:
        category = _draw(rng, MIX)
        question = _ask(_draw(rng, CHOICE_MIX) if category == "choice" else category, rng, cells)
        if question is not None:
            return replace(question, options=_options(question, rng, cells)) if category == "choice" else question


def _draw(rng: random.Random, mix: Mapping[Value, float]) -> Value:
    return rng.choices(list(mix), list(mix.values()))[0]


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
    """Draw a kind, colour or shape, or two colours or shapes. It is present in nine of ten cases; in the others it may
    be absent."""
    kind = rng.choice(present if rng.random() < 0.9 else KINDS)
    if rng.random() < TWO_CONDITIONS:
        first = rng.choice(kind.split())
        return f"{first} or {rng.choice([word for word in (*COLOURS, *SHAPES) if word != first])}"
    return rng.choice([kind, *kind.split()])


def _thing(subject: str) -> str:
    words = subject.split(" or ")
    if all(word in COLOURS for word in words):
        return f"{subject} shape"
    return " or a ".join(f"{word} shape" if word in COLOURS else word for word in words)


def _ask_compare(rng: random.Random, cells: Cells) -> Question | None:
    """Draw a comparison of two colours or two shapes, or of the sums of two of them, whose counts differ by two or
    more."""
    group = rng.choice((tuple(COLOURS), SHAPES))
    for _ in range(20):
        words = rng.sample(group, 4)
        first, second = words[0], words[1]
        if rng.random() < TWO_CONDITIONS:
            first, second = f"{words[0]} or {words[2]}", f"{words[1]} or {words[3]}"
        if abs(count(cells, first) - count(cells, second)) >= 2:
            text = f"Do more cells hold a {_thing(first)} than a {_thing(second)}?"
            return Question("compare", text, (first, second))
    return None


def _ask_path(rng: random.Random, cells: Cells) -> Question | None:
    """Draw a path of one to six steps from one shape to another. It visits no place twice."""
    found: dict[int, list[tuple[int, int]]] = {}
    for start in [divmod(index, SIDE) for index, cell in enumerate(cells) if cell != EMPTY]:
        for steps in STEPS_MIX:
            places = walk(start, cells, steps)
            if places and len(set(places)) == len(places) and cells[places[-1][0] * SIDE + places[-1][1]] != EMPTY:
                found.setdefault(steps, []).append(start)
    if not found or (max(found) < 3 and rng.random() < 0.9):
        return None
    steps = _draw(rng, {steps: STEPS_MIX[steps] for steps in found})
    row, column = start = rng.choice(found[steps])
    begin = f"Start in row {row + 1}, column {column + 1} and take {NUMBERS[steps - 1]}."
    return Question("path", f"{RULE_TEXT} {begin} What is there?", place=start, steps=steps)


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
