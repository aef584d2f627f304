"""Properties of mutual verification for any answers, documents, rules and random seeds."""

import copy
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import RULESETS, answers, documents, quick, two_answers
from support.documents import ALL, LETTERS, NONE, RULES, texts_agree

from lmms_eval_mai.method.agreement import AgreementRules, read_answer
from lmms_eval_mai.method.benchmarks import GENERIC

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
