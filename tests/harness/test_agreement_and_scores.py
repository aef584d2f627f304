"""Mutual verification and lmms-eval's scorers read the same answer in a text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import ATOMS, RULESETS, answers, documents, quick, two_answers
from support.documents import MMMU_OPEN, RELAXED, RULES, mmmu_letter, texts_agree
from support.scores import lmms_evals_score, scored_doc

from lmms_eval_mai.harness.tasks import AnswerFilter
from lmms_eval_mai.method.agreement import AgreementRules, extract_answer, read_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS

Doc = dict[str, Any]
every_benchmark = pytest.mark.parametrize("name", BENCHMARKS)


def score(name: str, doc: Doc, text: str) -> float:
    """Return the score of a model's text, as our task gets it from lmms-eval's scorer."""
    ((answer,),) = AnswerFilter().apply([[text]], None)
    return lmms_evals_score(name, doc, answer)


def gold_texts(name: str, doc: Doc, *texts: str) -> list[str]:
    """Return possible golds of a document. For open questions the answers to it are among them."""
    if name == "pope":
        return ["yes", "no"]
    if BENCHMARKS[name].kind(doc) == "letter":
        letters = "ABCDEF" if "\nE. " in doc.get("question", "") else "ABCD"
        return [letter for letter in letters if doc.get(letter) != "nan"]
    golds = [*(extract_answer(text) for text in texts), *ATOMS]
    # RealWorldQA's scorer compares letters if the gold is one, which the gold of an open question is not.
    letters = "ABCD" if name == "realworldqa" else ""
    return [gold for gold in golds if any(map(str.isalnum, gold)) and gold.upper() not in [*letters]]


def with_gold(name: str, doc: Doc, gold: str) -> Doc:
    """Return the document with its gold and the other fields that the scorer reads."""
    record = {"qid": "1", "gold": gold, "type": "human_test", "question_type": "short-answer", "options": {}}
    if name in ("pope", "mmmu_val", "mmbench_en_dev", "chartqa"):
        record["qid"] = "validation_Art_1" if name == "mmmu_val" else "1"
        return {**scored_doc(name, record), **doc}
    return {**doc, "answer": gold, "answers": [gold, "another answer"]}


def read_as_one_number(a: str, b: str) -> bool:
    """Return whether MMMU's scorer reads different lists in two answers that are the same number. It reads 1000 and 0
    in "1,000", and 1000 in "1000"."""
    from lmms_eval.tasks.mmmu.utils import parse_open_response

    return len({frozenset(map(str, parse_open_response(extract_answer(text)))) for text in (a, b)}) == 2


def check_pair(name: str, doc: Doc, gold: str, texts: tuple[str, str], rules: AgreementRules) -> bool:
    """Check the scores of two answers if they agree. Returns whether they agree."""
    doc = with_gold(name, doc, gold)
    if not texts_agree(BENCHMARKS[name], doc, *texts, rules):
        return False
    scores = [score(name, doc, text) for text in texts]
    if name == "infovqa_val":
        assert max(scores) < 1 or min(scores) >= rules.anls_threshold
    elif name == "chartqa" and rules.chartqa_match == "relaxed":
        assert any(scores) is all(scores) or gold.lower() not in [extract_answer(text).lower() for text in texts]
    elif doc.get("question_type") == "open" and read_as_one_number(*texts):
        assert scores == [1, 1] or gold not in [extract_answer(text) for text in texts]
    else:
        assert scores[0] == scores[1]
    return True


def is_wrong_or_guessed(name: str, doc: Doc, text: str, golds: list[str]) -> bool:
    """Return whether the scorer guesses the answer in a text, or takes it as wrong with each gold."""
    if doc.get("question_type") == "multiple-choice":
        return mmmu_letter(doc, extract_answer(text))[1]
    return all(score(name, with_gold(name, doc, gold), text) == 0 for gold in golds)


@every_benchmark
@quick
@given(data=st.data(), texts=two_answers(), rules=RULESETS)
def test_if_two_answers_agree_and_the_scorer_takes_one_as_right_the_other_one_is_right(
    name: str, data: st.DataObject, texts: tuple[str, str], rules: AgreementRules
) -> None:
    doc = data.draw(documents(name))
    check_pair(name, doc, data.draw(st.sampled_from(gold_texts(name, doc, *texts))), texts, rules)


@every_benchmark
@quick
@given(data=st.data(), text=answers())
def test_an_answer_that_the_scorer_takes_as_right_is_never_unparsable(
    name: str, data: st.DataObject, text: str
) -> None:
    doc = data.draw(documents(name))
    # lmms-eval's ANLS takes an empty text as right if the gold has many spaces in a row.
    if extract_answer(text) and read_answer(BENCHMARKS[name], doc, text) is None:
        assert is_wrong_or_guessed(name, doc, text, [data.draw(st.sampled_from(gold_texts(name, doc, text)))])


@pytest.mark.parametrize(
    ("name", "rules", "gold", "small", "large"),
    [
        ("chartqa", RELAXED, "96", "100", "104"),  # 5% from 96 to 100, and 5% from 100 to 104
        ("infovqa_val", RULES, "microsoft windows", "microsoft windows", "microsoft window"),  # 1, and 0.94
        ("mmmu_val", RULES, "0", "1,000", "1000"),  # the scorer reads 1000 and 0 in "1,000"
    ],
)
def test_answers_that_agree_can_have_different_scores_in_the_documented_cases_only(
    name: str, rules: AgreementRules, gold: str, small: str, large: str
) -> None:
    doc = with_gold(name, MMMU_OPEN if name == "mmmu_val" else {}, gold)
    assert texts_agree(BENCHMARKS[name], doc, small, large, rules)
    assert score(name, doc, small) > score(name, doc, large)
