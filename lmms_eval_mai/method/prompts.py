"""The prompt templates of Appendix C. They are copied exactly, except for the apostrophe of "option's", which
LaTeX prints as a typographic one. docs/paper-notes.md lists the other choices.
"""

import hashlib
from typing import Literal

from lmms_eval_mai.contract import Variant

AnswerForm = Literal["word", "letter"]
"""`word`: a single word or phrase (Prompt 1 of the Simple, Explain and Reasoning prompts in
Appendix C). `letter`: the letter of an option (Prompt 2 of these prompts)."""

VARIANTS: dict[str, tuple[Variant, bool]] = {
    "s": ("S", False),
    "e": ("E", False),
    "r": ("R", False),
    "e_s2": ("E", True),
    "r_s2": ("R", True),
}
"""Suffix of a task's name -> its prompt, and whether a second stage gives the answer (Appendix B.3)."""

TransferPrompt = Literal["previous_thinking", "reference"]
"""Name of a Reason Transfer prompt: that of Appendix C for POPE and ChartQA, or that for the other benchmarks."""

INSTRUCTIONS: dict[tuple[Variant, AnswerForm], str] = {
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

_PREVIOUS = "According to previous thinking: {stage1_response}\n "

STAGE2: dict[AnswerForm, str] = {
    "word": _PREVIOUS + "Answer the question using a single word or phrase.",
    "letter": _PREVIOUS + "Answer with the option's letter from the given choices directly.",
}

_REFERENCE = (
    "The following is a reference answer from a smaller model (it might be wrong or incomplete): {stage1_response}"
    "\n\n\n\n Please answer the question yourself, using the reference only if it seems reasonable.\n "
)

REASON_TRANSFER: dict[TransferPrompt, dict[AnswerForm, str]] = {
    # Prompt 1 of Reason Transfer, "for POPE and ChartQA", has the text of Stage 2.
    "previous_thinking": STAGE2,
    # Prompt 2 of Reason Transfer, "for MMBench, MMMU and InfoVQA, RealWorldQA". Example 3 (B.6) shows its text for
    # a word as the answer.
    "reference": {
        "letter": (
            _REFERENCE + "Answer with the option's letter from the given choices directly in the format: [[answer]]."
        ),
        "word": _REFERENCE + "Answer the question using a single word or phrase.",
    },
}

TransferAnswer = Literal["cut", "keep"]
"""`cut`: the small model's thinking without its `[[answer]]` is transferred. `keep`: its whole response."""

TRANSFER_ANSWER: dict[TransferPrompt, TransferAnswer] = {"previous_thinking": "keep", "reference": "cut"}
"""Reason Transfer prompt -> what is transferred in it by default. docs/paper-notes.md has the evidence for each."""

MAX_TOKENS = 4096
"""Output limit of every call, in tokens, as in lmms-eval's vllm model. The longest average in Tables 5 and 13 is 2,019
(2B, MMMU, R)."""


def instruction(variant: Variant, form: AnswerForm) -> str:
    """Return the answer-format sentence at the end of a Simple, Explain or Reasoning prompt."""
    return INSTRUCTIONS["S" if variant == "native" else variant, form]


def stage2(thinking: str, form: AnswerForm) -> str:
    """Return the second stage of a two-stage prompt: R_think^s + Prompt_simple of Eq. 8."""
    return STAGE2[form].format(stage1_response=thinking)


def transfer(prompt: TransferPrompt, thinking: str, form: AnswerForm) -> str:
    """Return a Reason Transfer prompt with the thinking: R_think^s + Prompt_simple of Eq. 9."""
    return thinking.join(transfer_parts(prompt, form))


def transfer_parts(prompt: TransferPrompt, form: AnswerForm) -> tuple[str, str]:
    """Return the texts before and after the thinking in a Reason Transfer prompt."""
    before, _, after = REASON_TRANSFER[prompt][form].partition("{stage1_response}")
    return before, after


def digest() -> str:
    """Return a hash of the templates and limits of this module, for the name of a run's store
    (`Evaluation._digest_of_run`): a run with other prompts is another run. A call is found by its whole text."""
    constants = (INSTRUCTIONS, STAGE2, REASON_TRANSFER, TRANSFER_ANSWER, MAX_TOKENS)
    return hashlib.blake2b(repr(constants).encode(), digest_size=8).hexdigest()
