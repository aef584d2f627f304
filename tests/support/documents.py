"""Rules and documents for tests of mutual verification."""

from typing import Any

from lmms_eval_mai.method.agreement import AgreementRules, Benchmark, read_answer, verify
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
LETTERS = {"letters": "ABC"}
NONE: dict[str, Any] = {}

DOCS: dict[str, list[dict[str, Any]]] = {
    "pope": [NONE],
    "mmmu_val": [MMMU_CHOICE, MMMU_OPEN],
    "mmbench_en_dev": [MMBENCH_FOUR, MMBENCH_THREE, MMBENCH_TWO],
    "chartqa": [NONE],
    "infovqa_val": [NONE],
    "realworldqa": [RWQA_CHOICE, RWQA_OPEN, RWQA_SIX],
    "shapes": [SHAPES_CHOICE, SHAPES_WORD],
    "any": [LETTERS, NONE],
}
"""Benchmark -> documents of every kind that it has."""


def texts_agree(benchmark: Benchmark, doc: dict[str, Any], a: str, b: str, rules: AgreementRules) -> bool:
    """Return whether the answers in two models' texts agree."""
    return verify(benchmark, *(read_answer(benchmark, doc, text) for text in (a, b)), rules)
