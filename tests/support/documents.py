"""Rules and documents for tests of mutual verification, and lmms-eval's own parse of an MMMU answer."""

import ast
import random
from typing import Any

from lmms_eval_mai.method.agreement import AgreementRules, Benchmark, agree, read_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS, GENERIC

RULES = AgreementRules()
RELAXED = AgreementRules(chartqa_match="relaxed")
ALL = {**BENCHMARKS, "any": GENERIC}

MMMU_CHOICE = {"question_type": "multiple-choice", "options": "['red', 'green', 'blue', 'orange']"}
MMMU_OPEN = {"question_type": "open", "options": "[]"}
MMBENCH_FOUR = {"A": "red", "B": "green", "C": "blue", "D": "orange"}
MMBENCH_THREE = {"A": "a bird", "B": "a dog", "C": "banana", "D": "nan"}
MMBENCH_TWO = {"A": "banana", "B": "apple", "C": "nan", "D": "nan"}
LETTER_ONLY = "Please answer directly with only the letter of the correct option and nothing else."
RWQA_CHOICE = {"question": f"Which side?\n\nA. Left.\nB. Right.\nC. None.\n\n{LETTER_ONLY}"}
RWQA_BARE = {"question": f"Which of the four? {LETTER_ONLY}"}
RWQA_OPEN = {"question": "How many cars?\n\nPlease answer directly with a single word or number."}
RWQA_SIX = {"question": "Which?\n" + "\n".join(f"{letter}. Sign {letter}" for letter in "ABCDEF")}
SHAPES_CHOICE = {"A": "red circle", "B": "blue cross", "C": "empty cell", "D": "red cross"}
SHAPES_WORD = dict.fromkeys("ABCD", "")
NONE: dict[str, Any] = {}

DOCS: dict[str, list[dict[str, Any]]] = {
    "pope": [NONE],
    "mmmu_val": [MMMU_CHOICE, MMMU_OPEN],
    "mmbench_en_dev": [MMBENCH_FOUR, MMBENCH_THREE, MMBENCH_TWO],
    "chartqa": [NONE],
    "infovqa_val": [NONE],
    "realworldqa": [RWQA_CHOICE, RWQA_OPEN, RWQA_SIX],
    "shapes": [SHAPES_CHOICE, SHAPES_WORD],
    "any": [{"options": ["red", "green"]}, NONE],
}
"""Benchmark -> documents of every kind that it has."""


def texts_agree(benchmark: Benchmark, doc: dict[str, Any], a: str, b: str, rules: AgreementRules) -> bool:
    """Return whether the answers in two models' texts agree."""
    return agree(benchmark, *(read_answer(benchmark, doc, text) for text in (a, b)), rules)


def mmmu_letter(doc: dict[str, Any], text: str) -> tuple[str, bool]:
    """Return the letter that lmms-eval's scorer parses, and whether it was drawn at random.

    A drawn letter depends on the seed, and drawing it changes the state of the random generator.
    """
    from lmms_eval.tasks.mmmu.utils import get_multi_choice_info, parse_multi_choice_response

    index2ans, choices = get_multi_choice_info(ast.literal_eval(doc["options"]))
    letters, drawn = [], []
    kept = random.getstate()
    for seed in (1, 2, 3, 4, 5):
        random.seed(seed)
        state = random.getstate()
        letters.append(parse_multi_choice_response(text, choices, index2ans))
        drawn.append(random.getstate() != state)
    random.setstate(kept)
    assert len(set(letters)) == 1 or all(drawn)
    return letters[0], all(drawn)
