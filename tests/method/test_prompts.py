"""The templates equal those of Appendix C, and each benchmark gets its own template."""

from itertools import product

import pytest
from support.tasks import BUILT_IN, OFFICIAL, STAGE_2

from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.prompts import REASON_TRANSFER, STAGE2, AnswerForm

PREVIOUS = "According to previous thinking: "
REFERENCE = "The following is a reference answer from a smaller model"
PREVIOUS_THINKING = {"pope", "chartqa"}
FORMS: tuple[AnswerForm, ...] = ("word", "letter")
REFERENCE_PROMPT = (
    "The following is a reference answer from a smaller model (it might be wrong or incomplete): {stage1_response}"
    "\n\n\n\n Please answer the question yourself, using the reference only if it seems reasonable.\n "
)


def test_the_reason_transfer_prompts_equal_those_of_appendix_c() -> None:
    """Prompt 1 is for a word, Prompt 2 for a letter. `tests/harness/test_tasks.py` compares all other templates."""
    for form in FORMS:
        papers = STAGE_2[form].replace("RESPONSE", "{stage1_response}")
        assert STAGE2[form] == REASON_TRANSFER["previous_thinking"][form] == papers
    in_brackets = OFFICIAL["mmmu_val letter"].replace("directly.", "directly in the format: [[answer]].")
    assert REASON_TRANSFER["reference"]["letter"] == REFERENCE_PROMPT + in_brackets
    assert REASON_TRANSFER["reference"]["word"] == REFERENCE_PROMPT + OFFICIAL["mmmu_val word"]  # Example 3 (B.6)


def test_each_benchmark_has_its_transfer_prompt_of_the_paper_and_other_tasks_have_prompt_2() -> None:
    for benchmark, form in product([*BUILT_IN, "shapes", "any"], FORMS):
        opening = PREVIOUS if benchmark in PREVIOUS_THINKING else REFERENCE
        assert prompts.transfer(benchmark_of(benchmark).transfer_prompt, "T", form).startswith(opening)
    assert prompts.transfer("previous_thinking", "T", "word") == prompts.stage2("T", "word")


def test_the_transfer_prompt_contains_the_thinking_unchanged() -> None:
    awkward = "First {stage1_response},\n\nthen {0} and {{}}: \\frac{1}{2} [[B]]\t "
    for name, form in product(REASON_TRANSFER, FORMS):
        before, after = REASON_TRANSFER[name][form].split("{stage1_response}")
        assert prompts.transfer(name, awkward, form) == before + awkward + after


def test_a_changed_template_or_limit_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {prompts.digest()}
    monkeypatch.setattr(prompts, "MAX_TOKENS", 409)
    digests.add(prompts.digest())
    for templates in (prompts.INSTRUCTIONS, prompts.STAGE2, prompts.REASON_TRANSFER["reference"]):
        monkeypatch.setitem(templates, next(iter(templates)), "Answer.")
        digests.add(prompts.digest())
    assert len(digests) == 5
