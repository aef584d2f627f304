"""Training samples: a prompt of Appendix C about an image, and the response to learn."""

import random
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.prompts import Kind

from .questions import ask
from .shapes import Cells, Question, draw, full_text, random_cells
from .thinking import Solution, mistaken, short, solve

Form = Literal["S", "E", "R", "stage2", "reference"]
"""The prompt: Simple, Explain, Reasoning, Stage 2 (which is also POPE's and ChartQA's Reason Transfer), or the
Reason Transfer prompt of the other benchmarks."""

FORMS: dict[str, dict[Form, float]] = {
    "small": {"S": 0.42, "E": 0.08, "R": 0.42, "stage2": 0.08},
    "large": {"S": 0.42, "E": 0.08, "R": 0.26, "stage2": 0.06, "reference": 0.18},
}
"""Share of each prompt in the training of each model. Only the large model gets the `reference` prompt."""

WRONG = 0.25
"""Share of wrong thinking in prompts that contain thinking, so that the model learns to check the image itself."""

EXPLANATION = 0.2
"""Share of explanations (E) in prompts that contain thinking."""


@dataclass(frozen=True)
class Sample:
    """One image, one prompt, one response."""

    cells: Cells
    question: Question
    form: Form
    prompt: str
    """All text after the image in the user's message."""
    response: str
    letter: str = ""
    """Letter of the right option. Empty for a free answer."""


def draw_images(rng: random.Random, number: int) -> list[tuple[Cells, Image.Image]]:
    """Draw new images with their cells."""
    return [(cells, draw(cells, rng)) for cells in (random_cells(rng) for _ in range(number))]


def draw_sample(rng: random.Random, cells: Cells, name: str) -> Sample:
    """Draw one sample about these cells, with a prompt that the named model is trained on."""
    question = ask(rng, cells)
    form = rng.choices(list(FORMS[name]), list(FORMS[name].values()))[0]
    kind: Kind = "letter" if question.options else "word"
    solution = solve(question, cells)
    match form:
        case "S":
            ending, response = prompts.instruction("S", kind), short(solution.answer)
        case "E":
            ending, response = prompts.instruction("E", kind), solution.explanation
        case "R":
            ending, response = prompts.instruction("R", kind), solution.thinking
        case _:
            given = _given_thinking(rng, question, cells, solution)
            template = prompts.REASON_TRANSFER["reference" if form == "reference" else "previous_thinking"][kind]
            ending, response = template.format(stage1_response=given), short(solution.answer)
    return Sample(
        cells, question, form, full_text(question) + ending, response, solution.answer if question.options else ""
    )


def _given_thinking(rng: random.Random, question: Question, cells: Cells, solution: Solution) -> str:
    if rng.random() < WRONG:
        solution = mistaken(question, cells, rng) or solution
    return solution.explanation if rng.random() < EXPLANATION else solution.thinking
