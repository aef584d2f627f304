"""Training samples: a prompt of Appendix C about an image, and the response to learn."""

import random
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import without_answer
from lmms_eval_mai.method.prompts import AnswerForm

from .questions import ask
from .shapes import Cells, Question, draw, full_text, random_cells
from .thinking import Solution, mistaken, short, solve

Form = Literal["S", "E", "R", "stage2", "reference"]
"""The prompt: Simple, Explain, Reasoning, Stage 2 (which is also POPE's and ChartQA's Reason Transfer), or the
Reason Transfer prompt of the other benchmarks."""

FORMS: dict[str, dict[Form, float]] = {
    "small": {"S": 0.42, "E": 0.08, "R": 0.42, "stage2": 0.08},
    "large": {"S": 0.41, "E": 0.05, "R": 0.41, "stage2": 0.03, "reference": 0.10},
}
"""Share of each prompt in the training of each model, except for the samples of `transfer_samples`."""

WRONG = 0.4
"""Share of thinking with a mistake in prompts that contain thinking, so that the model learns to check the image."""

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


@dataclass(frozen=True)
class Thought:
    """An image, and the small model's thinking about some questions."""

    seed: str
    """Seed of the image and the questions."""
    thinking: tuple[str, ...] = ()


def draw_images(rng: random.Random, number: int) -> list[tuple[Cells, Image.Image]]:
    """Draw new images with their cells."""
    return [(cells, draw(cells, rng)) for cells in (random_cells(rng) for _ in range(number))]


def draw_thought(seed: str, questions: int) -> tuple[Cells, Image.Image, list[Question]]:
    """Draw the image and the questions of a `Thought`."""
    rng = random.Random(seed)
    ((cells, image),) = draw_images(rng, 1)
    return cells, image, [ask(rng, cells) for _ in range(questions)]


def transfer_samples(rng: random.Random, thought: Thought) -> tuple[Cells, Image.Image, list[Sample]]:
    """Return an image, and samples that transfer the small model's thinking. The response is right in any case."""
    cells, image, questions = draw_thought(thought.seed, len(thought.thinking))
    forms: list[Form] = [rng.choices(("reference", "stage2"), (0.85, 0.15))[0] for _ in questions]
    given = zip(forms, questions, thought.thinking, strict=True)
    return cells, image, [_transfer(form, question, cells, text) for form, question, text in given]


def reasoning_prompt(question: Question) -> str:
    """Return the text of the Reasoning prompt after the image."""
    return full_text(question) + prompts.instruction("R", "letter" if question.options else "word")


def draw_sample(rng: random.Random, cells: Cells, name: str, transfer_answer: str = "cut") -> Sample:
    """Draw one sample about these cells, with a prompt that the named model is trained on. `transfer_answer`: as in
    `run.config`."""
    question = ask(rng, cells)
    form = rng.choices(list(FORMS[name]), list(FORMS[name].values()))[0]
    answer_form: AnswerForm = "letter" if question.options else "word"
    solution = solve(question, cells)
    match form:
        case "S":
            response = short(solution.answer)
        case "E":
            response = solution.explanation
        case "R":
            response = solution.thinking
        case _:
            thinking = _given_thinking(rng, question, cells, solution)
            return _transfer(form, question, cells, thinking, transfer_answer)
    prompt = full_text(question) + prompts.instruction(form, answer_form)
    return Sample(cells, question, form, prompt, response, solution.answer if question.options else "")


def _transfer(form: Form, question: Question, cells: Cells, thinking: str, transfer_answer: str = "cut") -> Sample:
    answer_form: AnswerForm = "letter" if question.options else "word"
    template = prompts.REASON_TRANSFER["reference" if form == "reference" else "previous_thinking"][answer_form]
    cut = form == "reference" and transfer_answer == "cut"  # Stage 2 always has the whole response
    given = without_answer(thinking) if cut else thinking
    prompt = full_text(question) + template.format(stage1_response=given)
    answer = solve(question, cells).answer
    return Sample(cells, question, form, prompt, short(answer), answer if question.options else "")


def _given_thinking(rng: random.Random, question: Question, cells: Cells, solution: Solution) -> str:
    if rng.random() < WRONG:
        solution = mistaken(question, cells, rng) or solution
    return solution.explanation if rng.random() < EXPLANATION else solution.thinking
