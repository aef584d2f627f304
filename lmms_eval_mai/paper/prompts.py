"""The prompt templates of Appendix C, byte for byte, and which benchmark uses which.

Knows nothing of engines or of lmms-eval. The paper prints a typographic apostrophe in "option's"; it is
LaTeX's rendering of the ASCII one that lmms-eval's own prompts have, and ASCII is used here. Other choices
are in docs/paper-notes.md.
"""

import hashlib
from typing import Literal

Kind = Literal["word", "letter"]
"""Prompt 1 (`word`: a single word or phrase) or Prompt 2 (`letter`: the option's letter)."""

Variant = Literal["S", "E", "R"]

INSTRUCTIONS: dict[tuple[Variant, Kind], str] = {
    ("S", "word"): (
        "Without thinking, directly answer the question using a single word or phrase in the format: [[answer]]"
    ),
    ("S", "letter"): (
        "Without thinking, directly answer with the option's letter from the given choices in the format: [[answer]]."
    ),
    ("E", "word"): (
        "Provide a simple explanation, then answer the question using a single word or phrase in the format: [[answer]]"
    ),
    ("E", "letter"): (
        "Provide a simple explanation, then answer with the option's letter from the given choices directly "
        "in the format: [[answer]]"
    ),
    ("R", "word"): (
        "Please think step by step, provide a detailed explanation, then answer the question using a single word "
        "or phrase in the format: [[answer]]"
    ),
    ("R", "letter"): (
        "Please think step by step, provide a detailed explanation, then answer with the option's letter from the "
        "given choices directly in the format: [[answer]]"
    ),
}

STAGE2: dict[Kind, str] = {
    "word": ("According to previous thinking: {stage1_response}\n Answer the question using a single word or phrase."),
    "letter": (
        "According to previous thinking: {stage1_response}\n"
        " Answer with the option's letter from the given choices directly."
    ),
}

_REFERENCE = (
    "The following is a reference answer from a smaller model (it might be wrong or incomplete): {stage1_response}"
    "\n\n\n\n Please answer the question yourself, using the reference only if it seems reasonable.\n "
)

REASON_TRANSFER: dict[str, dict[Kind, str]] = {
    # Prompt 1, "for POPE and ChartQA", is the text of Stage 2.
    "previous_thinking": STAGE2,
    # Prompt 2, "for MMBench, MMMU and InfoVQA, RealWorldQA". Its `word` form is the one Example 3 (B.6) prints.
    "reference": {
        "letter": (
            _REFERENCE + "Answer with the option's letter from the given choices directly in the format: [[answer]]."
        ),
        "word": _REFERENCE + "Answer the question using a single word or phrase.",
    },
}

TRANSFER_TEMPLATE: dict[str, str] = {
    "pope": "previous_thinking",
    "chartqa": "previous_thinking",
    "mmbench_en_dev": "reference",
    "mmmu_val": "reference",
    "infovqa_val": "reference",
    "realworldqa": "reference",
    "shapes": "reference",
}
"""Benchmark -> the Reason Transfer prompt that Appendix C gives it (`shapes` is ours). Tasks that are not in it
get `reference`."""

MAX_TOKENS: dict[str, int] = {"S": 1024, "E": 4096, "R": 4096, "answer": 1024}
"""Output limits. They only cap: the longest average in Tables 5 and 13 is 2,019 tokens (2B, MMMU, R)."""


def instruction(variant: Variant, kind: Kind) -> str:
    """The answer-format sentence that ends a Simple, Explain or Reasoning prompt."""
    return INSTRUCTIONS[variant, kind]


def stage2(thinking: str, kind: Kind) -> str:
    """Stage 2 of a two-stage prompt: Rs_think + Prompt_simple of Eq. 8."""
    return STAGE2[kind].format(stage1_response=thinking)


def transfer(benchmark: str, thinking: str, kind: Kind) -> str:
    """Reason Transfer: Rs_think + Prompt_simple of Eq. 9, as `benchmark` has it."""
    template = REASON_TRANSFER[TRANSFER_TEMPLATE.get(benchmark, "reference")][kind]
    return template.format(stage1_response=thinking)


def digest() -> str:
    """Return a hash of all templates and limits of this module: runs with different prompts must not share answers."""
    constants = (INSTRUCTIONS, STAGE2, REASON_TRANSFER, TRANSFER_TEMPLATE, MAX_TOKENS)
    return hashlib.blake2b(repr(constants).encode(), digest_size=8).hexdigest()
