"""The responses of a model that sees the cells: thinking (R), explanation (E), short answer (S).

Steps are small enough for a network of a few layers: one cell, one count or one move at a time.
"""

import random
from dataclasses import dataclass

from .shapes import EMPTY, KINDS, LEADS, LETTERS, ORDINALS, SHAPES, SIDE, Cells, Question, count, matches, walk


@dataclass(frozen=True)
class Solution:
    """The three responses to a question."""

    thinking: str
    explanation: str
    answer: str
    """The answer that the task expects: the free answer, or the letter of the option."""


def solve(question: Question, cells: Cells) -> Solution:
    """Solve a question with these cells.

    Raises `ValueError` if the cells give no answer: a path through an empty cell, an answer that is not one of the
    options.
    """
    thinking, explanation, answer = {
        "yes_no": _yes_no,
        "count": _count,
        "compare": _compare,
        "where": _where,
        "path": _path,
    }[question.category](question, cells)
    if question.options:
        letter = LETTERS[question.options.index(answer)]
        conclusion = f" The answer is {answer}: {letter}."
        thinking, explanation, answer = thinking + conclusion, explanation + conclusion, letter
    return Solution(f"{thinking}\n[[{answer}]]", f"{explanation}\n[[{answer}]]", answer)


def short(answer: str) -> str:
    """Return the response to a Simple, Stage 2 or Reason Transfer prompt."""
    return f"[[{answer}]]"


def mistaken(question: Question, cells: Cells, rng: random.Random) -> Solution | None:
    """Draw a solution with one mistake, consistent after the mistake. Returns None if 20 attempts find none."""
    right = solve(question, cells).answer
    for _ in range(20):
        wrong = list(cells)
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(wrong))
            wrong[place] = _misread(wrong[place], rng)
        try:
            solution = solve(question, tuple(wrong))
        except ValueError:
            continue
        if solution.answer != right:
            return solution
    return None


def _misread(cell: str, rng: random.Random) -> str:
    """Draw another content of a cell. As in real errors, the colour is mostly right."""
    if cell == EMPTY or rng.random() < 0.2:
        return rng.choice([*KINDS, EMPTY])
    colour, shape = cell.split()
    return f"{colour} {rng.choice([other for other in SHAPES if other != shape])}"


def _rows(cells: Cells) -> list[Cells]:
    return [cells[i : i + SIDE] for i in range(0, len(cells), SIDE)]


def listed(cell: str) -> str:
    """Return a cell of the listing, "|red-circle". Its tokens differ from those of "red circle" in a question, so that
    a small network can distinguish the question from the listing."""
    return "|" + cell.replace(" ", "-")


def _tally(cells: Cells, subjects: tuple[str, ...]) -> str:
    """Return every cell with the counts so far, one line per row."""
    totals = [0] * len(subjects)
    lines = []
    for number, row in enumerate(_rows(cells), start=1):
        line = f"Row {number}"
        for cell in row:
            totals = [total + matches(cell, subject) for total, subject in zip(totals, subjects, strict=True)]
            line += f"{listed(cell)} {'-'.join(map(str, totals))}"
        lines.append(line)
    return "\n".join(lines)


def _per_row(cells: Cells, subject: str) -> str:
    return ", ".join(str(count(row, subject)) for row in _rows(cells))


def _yes_no(question: Question, cells: Cells) -> tuple[str, str, str]:
    (subject,) = question.subjects
    total = count(cells, subject)
    answer = "yes" if total else "no"
    thinking = f"{_tally(cells, question.subjects)}\nThe count is {total}, so {answer}."
    return thinking, f"The rows have {_per_row(cells, subject)}.", answer


def _count(question: Question, cells: Cells) -> tuple[str, str, str]:
    (subject,) = question.subjects
    total = str(count(cells, subject))
    return (
        f"{_tally(cells, question.subjects)}\nThe count is {total}.",
        f"The rows have {_per_row(cells, subject)}.",
        total,
    )


def _compare(question: Question, cells: Cells) -> tuple[str, str, str]:
    first, second = (count(cells, subject) for subject in question.subjects)
    if first == second:
        raise ValueError("the two counts are equal")
    answer = "yes" if first > second else "no"
    conclusion = f"The counts are {first}-{second}, so {answer}."
    return f"{_tally(cells, question.subjects)}\n{conclusion}", conclusion, answer


def _where(question: Question, cells: Cells) -> tuple[str, str, str]:
    row, column = question.place
    answer = cells[row * SIDE + column]
    listing = f"Row {row + 1}{''.join(map(listed, _rows(cells)[row]))}"
    return f"{listing}\nColumn {column + 1}: {answer}.", listing, answer


def _path(question: Question, cells: Cells) -> tuple[str, str, str]:
    places = walk(question.place, cells, question.steps)
    if places is None:
        raise ValueError("the path goes through an empty cell")
    seen = [cells[row * SIDE + column] for row, column in places]
    steps = f"Row {places[0][0] + 1}, column {places[0][1] + 1}"
    for ordinal, before, (row, column) in zip(ORDINALS, seen, places[1:], strict=False):
        colour = before.split()[0]
        steps += f"|{colour}; {ordinal} {LEADS[colour]}: row {row + 1}, column {column + 1}"
    return f"{steps}.\nThere is: {seen[-1]}.", f"The first shape is {seen[0].split()[0]}.", seen[-1]
