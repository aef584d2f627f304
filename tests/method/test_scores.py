"""The scores of answers inside a cascade are those of lmms-eval's scorers."""

import itertools
from typing import Any

import pytest
from support.answers import ATOMS
from support.documents import DOCS
from support.scores import lmms_evals_score, scored_doc

from lmms_eval_mai.method.agreement import extract_answer, read_answer
from lmms_eval_mai.method.benchmarks import BENCHMARKS, golds_of

Doc = dict[str, Any]


def golds(name: str, doc: Doc) -> list[str]:
    if name == "pope":
        return ["yes", "no"]
    if BENCHMARKS[name].kind(doc) == "letter":
        return [letter for letter in "ABCD" if doc.get(letter) != "nan"]
    return [*ATOMS, "1,000", "105", "north", "24/7", "5%"]


def scored(name: str, doc: Doc, text: str, gold: str) -> float:
    """Return the score that the task gets from lmms-eval."""
    record = {"qid": "validation_Art_1" if name == "mmmu_val" else "1", "gold": gold, "type": "human_test"}
    record |= {"question_type": "short-answer", "options": {}}
    if name in ("pope", "mmmu_val", "mmbench_en_dev", "chartqa"):
        doc = {**scored_doc(name, record), **doc, "answer": gold}
    else:
        doc = {**doc, "answer": gold, "answers": [gold, "another answer"]}
    return lmms_evals_score(name, doc, extract_answer(text))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_score_of_a_parsed_answer_is_that_of_lmms_evals_scorer(name: str, task_manager: Any) -> None:
    compared = 0
    for doc, text in itertools.product(DOCS[name], [*ATOMS, "1000", "100", "5.2%", "nort", "north.", "24/7 all day"]):
        parsed = read_answer(BENCHMARKS[name], doc, text)
        if parsed is None:
            assert BENCHMARKS[name].score_of(parsed, "A") == 0
            continue
        if name == "infovqa_val" and " ".join(text.split()) != text:
            continue  # lmms-eval's ANLS of the raw text is higher, because it divides by the length with all spaces
        for gold in golds(name, doc):
            if name == "realworldqa" and BENCHMARKS[name].kind(doc) == "word" and gold.upper() in [*"ABCD"]:
                continue  # the gold of an open question is not a letter
            target = str([gold, "another answer"]) if name == "infovqa_val" else gold
            score = BENCHMARKS[name].score_of(parsed, target)
            assert score == pytest.approx(scored(name, doc, text, gold)), (doc, text, gold)
            compared += 1
    assert compared > 5


def test_long_answers_to_infovqa_are_wrong_without_a_comparison_of_every_character() -> None:
    assert BENCHMARKS["infovqa_val"].score_of("word " * 100_000, "['north', 'the north']") == 0


def test_a_logged_list_of_golds_is_read_as_a_list() -> None:
    assert golds_of("['18', \"18's\"]") == ["18", "18's"]
    assert golds_of("18") == ["18"]
