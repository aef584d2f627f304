"""Mutual verification and lmms-eval's scorers read the same answer in a text, and so do the scores of answers inside a
cascade."""

import ast
import importlib
import itertools
import random
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import ATOMS, RULESETS, answers, documents, quick, two_answers
from support.documents import DOCS, texts_agree

from lmms_eval_mai.harness.tasks import AnswerFilter
from lmms_eval_mai.method.agreement import AgreementRules, extract_answer, read_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS

Doc = dict[str, Any]
every_benchmark = pytest.mark.parametrize("name", BENCHMARKS)


def score(name: str, doc: Doc, text: str) -> float:
    """Return the score of a model's text as our task gets it from lmms-eval's scorer, 0 to 1. It guesses an MMMU option
    at random if it cannot read the answer."""
    from lmms_eval.api.metrics import anls, exact_match_hf_evaluate

    ((answer,),) = AnswerFilter().apply([[text]], None)
    answers = [answer.strip()]
    if name == "infovqa_val":
        return anls(references=doc["answers"], predictions=answers)["anls"]
    if name == "shapes":
        given = {"predictions": answers, "references": [doc["answer"]]}
        return exact_match_hf_evaluate(**given, ignore_case=True, ignore_punctuation=True)["exact_match"]
    module, _, prefix = BENCHMARKS[name].functions.rpartition(".")
    utils = importlib.import_module(module, "lmms_eval.tasks")
    found = getattr(utils, f"{prefix}_process_results")(doc, answers)
    if name == "mmmu_val":
        return utils.evaluate_mmmu([found["mmmu_acc"]])[1]["acc"]
    if name == "mmbench_en_dev":
        row = found["gpt_eval_score"]
        return utils.mmbench_evaluator.eval_sub_data(pd.DataFrame([row]), {row["index"]: row["answer"]}, True)
    metric = {"pope": "pope_accuracy", "chartqa": "relaxed_overall", "realworldqa": "exact_match"}[name]
    return found[metric]["score"] if name == "pope" else found[metric]


def gold_texts(name: str, doc: Doc, *texts: str) -> list[str]:
    """Return possible golds of a document. For open questions the answers to it are among them."""
    if name == "pope":
        return ["yes", "no"]
    if BENCHMARKS[name].answer_form(doc) == "letter":
        letters = "ABCDEF" if "\nE. " in doc.get("question", "") else "ABCD"
        return [letter for letter in letters if doc.get(letter) != "nan"]
    golds = [*(extract_answer(text) for text in texts), *ATOMS]
    # RealWorldQA's scorer compares letters if the gold is one, which the gold of an open question is not.
    letters = "ABCD" if name == "realworldqa" else ""
    return [gold for gold in golds if any(map(str.isalnum, gold)) and gold.upper() not in [*letters]]


def with_gold(name: str, doc: Doc, gold: str) -> Doc:
    """Return the document with its gold and the other fields that the scorer reads."""
    texts = ("question", "hint", "source", "split", "category", "L2-category")
    fields = {
        "pope": {"question_id": "1"},
        "mmmu_val": {"id": "validation_Art_1"},
        "mmbench_en_dev": {"index": 1, **dict.fromkeys(texts, "")},
        "chartqa": {"type": "human_test"},
    }
    return {**fields.get(name, {}), **doc, "answer": gold, "answers": [gold, "another answer"]}


def read_as_one_number(a: str, b: str) -> bool:
    """Return whether MMMU's scorer reads different lists in two answers that are the same number. It reads 1000 and 0
    in "1,000", and 1000 in "1000"."""
    from lmms_eval.tasks.mmmu.utils import parse_open_response

    return len({frozenset(map(str, parse_open_response(extract_answer(text)))) for text in (a, b)}) == 2


def is_guessed(doc: Doc, text: str) -> bool:
    """Return whether MMMU's scorer draws the letter of an answer at random."""
    from lmms_eval.tasks.mmmu.utils import get_multi_choice_info, parse_multi_choice_response

    index2ans, choices = get_multi_choice_info(ast.literal_eval(doc["options"]))
    before = random.getstate()
    parse_multi_choice_response(extract_answer(text), choices, index2ans)
    is_drawn = random.getstate() != before
    random.setstate(before)
    return is_drawn


@every_benchmark
@quick
@given(data=st.data(), texts=two_answers(), rules=RULESETS)
def test_if_two_answers_agree_and_the_scorer_takes_one_as_right_the_other_one_is_right(
    name: str, data: st.DataObject, texts: tuple[str, str], rules: AgreementRules
) -> None:
    doc = data.draw(documents(name))
    gold = data.draw(st.sampled_from(gold_texts(name, doc, *texts)))
    doc = with_gold(name, doc, gold)
    if not texts_agree(BENCHMARKS[name], doc, *texts, rules):
        return
    scores = [score(name, doc, text) for text in texts]
    if name == "infovqa_val":
        assert max(scores) < 1 or min(scores) >= rules.anls_threshold
    elif name == "chartqa" and rules.chartqa_match == "relaxed":
        assert any(scores) is all(scores) or gold.lower() not in [extract_answer(text).lower() for text in texts]
    elif doc.get("question_type") == "open" and read_as_one_number(*texts):
        assert scores == [1, 1] or gold not in [extract_answer(text) for text in texts]
    else:
        assert scores[0] == scores[1]


@every_benchmark
@quick
@given(data=st.data(), text=answers())
def test_an_answer_that_the_scorer_takes_as_right_is_never_unparsable(
    name: str, data: st.DataObject, text: str
) -> None:
    doc = data.draw(documents(name))
    # lmms-eval's ANLS takes an empty text as right if the gold has many spaces in a row.
    if extract_answer(text) and read_answer(BENCHMARKS[name], doc, text) is None:
        gold = data.draw(st.sampled_from(gold_texts(name, doc, text)))
        if doc.get("question_type") == "multiple-choice":
            assert is_guessed(doc, text)
        else:
            assert score(name, with_gold(name, doc, gold), text) == 0


@every_benchmark
def test_score_of_a_parsed_answer_is_that_of_lmms_evals_scorer(name: str, task_manager: Any) -> None:
    compared = 0
    for doc, text in itertools.product(DOCS[name], [*ATOMS, "1000", "100", "5.2%", "nort", "north.", "24/7 all day"]):
        parsed = read_answer(BENCHMARKS[name], doc, text)
        if parsed is None:
            assert BENCHMARKS[name].score_of(parsed, "A") == 0
            continue
        if name == "infovqa_val" and " ".join(text.split()) != text:
            continue  # lmms-eval's ANLS of the raw text is higher, because it divides by the length with all spaces
        for gold in gold_texts(name, doc, "1,000", "105", "north", "24/7", "5%"):
            target = str([gold, "another answer"]) if name == "infovqa_val" else gold
            found = BENCHMARKS[name].score_of(parsed, target)
            assert found == pytest.approx(score(name, with_gold(name, doc, gold), text)), (doc, text, gold)
            compared += 1
    assert compared > 5
