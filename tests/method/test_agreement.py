"""Mutual verification of two answers against a table, and the form of answer that a document requires."""

import copy
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import RULESETS, answers, documents, quick, two_answers
from support.documents import (
    ALL,
    LETTERS,
    MMBENCH_FOUR,
    MMBENCH_THREE,
    MMBENCH_TWO,
    MMMU_CHOICE,
    MMMU_OPEN,
    NONE,
    RELAXED,
    RULES,
    RWQA_BARE,
    RWQA_CHOICE,
    RWQA_OPEN,
    RWQA_SIX,
    SHAPES_CHOICE,
    SHAPES_WORD,
    texts_agree,
)

from lmms_eval_mai.method.agreement import AgreementRules, read_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS, GENERIC, options_of

MMBENCH_HOLES = {"A": "red", "B": "green", "C": float("nan"), "D": None}

# benchmark, document, one answer, another answer, whether they are the same
TABLE: list[tuple[str, dict[str, Any], str, str, bool]] = [
    # POPE: yes or no and nothing else, because all other answers have a score of 0.
    ("pope", NONE, "Yes", "yes", True),
    ("pope", NONE, "[[No]]", " no\n", True),
    ("pope", NONE, "Yes", "No", False),
    ("pope", NONE, "Yes.", "Yes.", False),
    ("pope", NONE, "There is no dog", "no", False),
    ("pope", NONE, "", "", False),
    # MMMU, multiple choice: if lmms-eval would draw a letter at random, there is no answer.
    ("mmmu_val", MMMU_CHOICE, "B", "(B)", True),
    ("mmmu_val", MMMU_CHOICE, "The first colour to be seen is green", "B", True),
    ("mmmu_val", MMMU_CHOICE, "A", "B", False),
    *(("mmmu_val", MMMU_CHOICE, text, text, False) for text in ("", "E", "none", "**D**")),
    # MMMU, open: the scorer reads the same in both, or its own rule, which rounds numbers, accepts both directions.
    ("mmmu_val", MMMU_OPEN, "x = 3", "y = 3", True),
    ("mmmu_val", MMMU_OPEN, "12,300", "12300.0", True),
    ("mmmu_val", MMMU_OPEN, "5", "5.001", True),
    ("mmmu_val", MMMU_OPEN, "5", "6", False),
    ("mmmu_val", MMMU_OPEN, "cat", "cats", False),
    ("mmmu_val", MMMU_OPEN, "", "", False),
    # MMBench: letters of options that exist. Columns with "nan" or nothing are not options, but the scorer finds the
    # text "nan" in "banana".
    ("mmbench_en_dev", MMBENCH_FOUR, "\\boxed{B}", "Bird", True),
    ("mmbench_en_dev", MMBENCH_FOUR, "It is orange", "[[D.]]", True),
    ("mmbench_en_dev", MMBENCH_FOUR, "A", "B", False),
    ("mmbench_en_dev", MMBENCH_FOUR, "red and blue", "red and blue", False),
    ("mmbench_en_dev", MMBENCH_THREE, "C", "banana", False),
    ("mmbench_en_dev", MMBENCH_TWO, "a ripe apple", "B", True),
    *(("mmbench_en_dev", MMBENCH_TWO, text, text, False) for text in ("nan", "C")),
    *(("mmbench_en_dev", MMBENCH_HOLES, text, text, False) for text in ("none", "C")),
    # ChartQA: equal texts, or numbers that are equal for the scorer.
    ("chartqa", NONE, "Blue", " blue", True),
    ("chartqa", NONE, "5.0", "5", True),
    ("chartqa", NONE, "0.50", "50%", True),
    ("chartqa", NONE, "2%", "2", False),
    ("chartqa", NONE, "1,234", "1234", False),
    ("chartqa", NONE, "0", "0.0", False),
    ("chartqa", NONE, "nan", "NaN%", False),
    ("chartqa", NONE, "", "", False),
    # InfoVQA: equal texts.
    ("infovqa_val", NONE, "North  America", "north america", True),
    ("infovqa_val", NONE, "the end of the year 2019", "the end of the year 2018", False),
    ("infovqa_val", NONE, "", "", False),
    # RealWorldQA: the letter that the scorer finds, or the open answer as the scorer normalises it.
    ("realworldqa", RWQA_CHOICE, "The answer is C", "C.", True),
    ("realworldqa", RWQA_CHOICE, "Bird", "(B)", True),
    ("realworldqa", RWQA_CHOICE, "I pick C, not D", "D", True),
    ("realworldqa", RWQA_CHOICE, "A", "C", False),
    ("realworldqa", RWQA_SIX, "E", "E.", True),
    ("realworldqa", RWQA_BARE, "D", "d) D", True),
    ("realworldqa", RWQA_OPEN, "Downhill", "downhill.", True),
    ("realworldqa", RWQA_OPEN, "3", "three", False),
    # shapes: equal without case and punctuation.
    ("shapes", SHAPES_CHOICE, "The answer is C", "C.", False),
    ("shapes", SHAPES_CHOICE, "?", "?", False),
    ("shapes", SHAPES_WORD, "Red circle", "red circle.", True),
    ("shapes", SHAPES_WORD, "red circle", "red cross", False),
    # Another lmms-eval task: letters if its prompt shows them, and equal texts.
    ("any", LETTERS, "B", "(B) a dog", True),
    ("any", LETTERS, "Option A", "\\boxed{A}", True),
    ("any", LETTERS, "So the answer should be **C**.", "Therefore, C.", True),
    ("any", LETTERS, "A cat", "A dog", False),
    ("any", LETTERS, "(A) and (B)", "A", False),
    ("any", LETTERS, "Yes", "yes", True),
    ("any", NONE, "B", "(B)", False),
    ("any", MMBENCH_TWO, "A banana", "a banana", True),  # the columns do not tell whether the prompt shows letters
    ("any", NONE, "42", "42.", False),
    ("any", NONE, "", "", False),
]


@pytest.mark.parametrize(("name", "doc", "a", "b", "same"), TABLE)
def test_two_answers_agree_if_and_only_if_the_table_has_true(
    name: str, doc: dict[str, Any], a: str, b: str, same: bool
) -> None:
    assert texts_agree(ALL[name], doc, a, b, RULES) is same
    assert texts_agree(ALL[name], doc, b, a, RULES) is same


@pytest.mark.parametrize(
    ("name", "rules", "a", "b", "same"),
    [
        ("infovqa_val", AgreementRules(0.94, "anls"), "Microsoft Windows", "Microsoft Window", True),
        ("infovqa_val", AgreementRules(0.95, "anls"), "Microsoft Windows", "Microsoft Window", False),
        # The paper's plain rule: ANLS for digits too, here 0.75.
        ("infovqa_val", AgreementRules(0.5, "anls"), "2019", "2018", True),
        # ChartQA's tolerance in both directions.
        ("chartqa", RELAXED, "50%", "0.51", True),
        ("chartqa", RELAXED, "Blue", "blue", True),
        ("chartqa", RELAXED, "inf", "inf", True),  # their relative change is not a number
        ("chartqa", RELAXED, "95", "100", False),  # 95 differs from 100 by 5 %, and 100 from 95 by 5.3 %
        ("chartqa", RELAXED, "0", "0.0", False),  # a target of zero is compared as text
        ("chartqa", RELAXED, "", "", False),
    ],
)
def test_the_users_rules_decide(name: str, rules: AgreementRules, a: str, b: str, same: bool) -> None:
    assert texts_agree(BENCHMARKS[name], NONE, a, b, rules) is same
    assert texts_agree(BENCHMARKS[name], NONE, b, a, rules) is same


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("benchmark", "doc", "text", "end"),
    [("infovqa_val", NONE, "word " * 20_000, "s"), ("mmmu_val", MMMU_OPEN, "1" * 30_000, ".")],
)
def test_texts_of_models_that_do_not_stop_are_compared_without_functions_that_need_minutes(
    benchmark: str, doc: Any, text: str, end: str
) -> None:
    rules = AgreementRules(infovqa_match="anls")
    assert texts_agree(BENCHMARKS[benchmark], doc, text, text, rules)
    assert not texts_agree(BENCHMARKS[benchmark], doc, text, text + end, rules)
    short = text[:200].strip()  # as short texts, both would agree
    assert texts_agree(BENCHMARKS[benchmark], doc, short, short + end, rules)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("Which?\nA. a cat\nB. a dog\n", ["a cat", "a dog"]),
        ("What is it? (A) a cat (B) a dog", ["a cat", "a dog"]),
        ("For example:\nA) 1\nB) 2\nC) 3\nWhich?\nA) <image>\nB) <image>", ["<image>", "<image>"]),
        ("Paper by: A. Smith and B. Jones. Which year?", []),
        ("Point A. Point B. Which is higher?", []),
        ("Answer with A, B or C.\nA. the only one", []),
    ],
)
def test_letters_are_those_that_the_prompt_shows_before_its_last_options(prompt: str, options: list[str]) -> None:
    assert options_of(prompt) == options


every_benchmark = pytest.mark.parametrize("name", ALL)


@every_benchmark
@quick
@given(data=st.data(), texts=two_answers(), rules=RULESETS, seeds=st.tuples(st.integers(), st.integers()))
def test_verification_is_symmetric_and_changes_neither_the_document_nor_the_global_random_state(
    name: str, data: st.DataObject, texts: tuple[str, str], rules: AgreementRules, seeds: tuple[int, int]
) -> None:
    import lmms_eval.tasks  # noqa: F401 - its first import draws random numbers

    doc = data.draw(documents(name))
    before, outcomes = copy.deepcopy(doc), []
    for seed in seeds:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        states = random.getstate(), str(np.random.get_state())
        outcomes.append(
            [read_answer(ALL[name], doc, text) for text in texts] + [texts_agree(ALL[name], doc, *texts, rules)]
        )
        unmoved = (random.getstate(), str(np.random.get_state())) == states
        assert unmoved  # without pytest's comparison of 600 numbers
    same = texts_agree(ALL[name], doc, *reversed(texts), rules)
    assert outcomes[0] == outcomes[1] and doc == before and outcomes[0][-1] is same


@every_benchmark
@quick
@given(data=st.data(), text=answers(), rules=RULESETS)
def test_an_answer_agrees_with_itself_if_and_only_if_it_parses(
    name: str, data: st.DataObject, text: str, rules: AgreementRules
) -> None:
    doc = data.draw(documents(name))
    parsed = read_answer(ALL[name], doc, text)
    assert texts_agree(ALL[name], doc, text, text, rules) is (parsed is not None) and parsed != ""


@quick
@given(text=answers())
def test_texts_that_differ_only_in_case_and_surrounding_space_agree(text: str) -> None:
    for doc in (LETTERS, NONE):
        parsed = read_answer(GENERIC, doc, text)
        assert texts_agree(GENERIC, doc, text, f" {text.lower()}\n", RULES) is (parsed is not None)
