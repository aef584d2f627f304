"""Mutual verification of answers that real models gave."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from support.documents import MMMU_OPEN, NONE, RELAXED, RULES, mmmu_letter
from support.published import mmmu_doc, replay

from lmms_eval_mai.paper.agreement import AgreementRules, Verification, extract_answer, verify
from lmms_eval_mai.paper.benchmarks import BENCHMARKS


def test_real_pope_answers_agree_if_and_only_if_they_are_the_same_word(shared: Path) -> None:
    def key(record: dict[str, Any]) -> tuple[str, str, str]:
        return record["image"], record["question"], record["category"]

    small = {key(record): record["response"] for record in replay(shared, "pope__llava-v1.5-7b_greedy")}
    large = {key(record): record["response"] for record in replay(shared, "pope__llava-v1.5-13b")}
    both = small.keys() & large.keys()
    assert len(both) > 8000
    agreed = 0
    for document in both:
        a, b = small[document].strip().lower(), large[document].strip().lower()
        assert {a, b} <= {"yes", "no"}
        agree = verify(BENCHMARKS["pope"], NONE, small[document], large[document], RULES).agree
        assert agree is (a == b), document
        agreed += agree
    assert 0.5 < agreed / len(both) < 1


@pytest.fixture(scope="module")
def mmmu_pairs(shared: Path) -> list[tuple[dict[str, Any], str, str]]:
    """Return (document, LLaVA-1.5's answer, Qwen-VL's answer) for MMMU's 900 validation questions."""
    llava = {record["qid"]: record for record in replay(shared, "mmmu_val__llava1.5_13b")}
    qwen = {record["qid"]: record for record in replay(shared, "mmmu_val__qwen_vl")}
    assert llava.keys() == qwen.keys()
    assert len(llava) == 900
    return [(mmmu_doc(llava[qid]), llava[qid]["response"], qwen[qid]["response"]) for qid in llava]


def test_real_mmmu_letters_agree_if_they_are_equal_and_neither_is_guessed(
    mmmu_pairs: list[tuple[dict[str, Any], str, str]],
) -> None:
    agreed = guesses = 0
    for doc, *texts in mmmu_pairs:
        if doc is MMMU_OPEN:
            continue
        (a, a_guessed), (b, b_guessed) = (mmmu_letter(doc, extract_answer(text)) for text in texts)
        found = verify(BENCHMARKS["mmmu_val"], doc, *texts, RULES)
        assert (found.small, found.large) == (None if a_guessed else a, None if b_guessed else b)
        assert found.agree is (a == b and not a_guessed and not b_guessed), texts
        agreed += found.agree
        guesses += a_guessed + b_guessed
    assert agreed > 100
    assert guesses > 20


def test_real_open_mmmu_answers_agree_if_they_are_the_same_number_or_text_or_the_scorer_reads_the_same(
    mmmu_pairs: list[tuple[dict[str, Any], str, str]],
) -> None:
    from lmms_eval.tasks.mmmu.utils import parse_open_response

    texts = sorted({text for doc, *pair in mmmu_pairs if doc is MMMU_OPEN for text in pair})
    assert len(texts) > 50

    def plain(text: str) -> float | str:
        try:
            return round(float(text.replace(",", "")), 2)
        except ValueError:
            return text.strip().lower()

    read = {text: set(map(str, parse_open_response(text))) for text in texts}
    agreed = only_read = 0
    for a, b in product(texts, texts):
        agree = verify(BENCHMARKS["mmmu_val"], MMMU_OPEN, a, b, RULES).agree
        assert agree is (plain(a) == plain(b) or read[a] == read[b]), (a, b)
        agreed += agree
        only_read += agree and plain(a) != plain(b)  # "0" and "Therefore, the probability is 0."
    assert len(texts) + only_read <= agreed < len(texts) ** 2
    assert only_read


def test_real_mmbench_letters_parse_to_themselves(shared: Path) -> None:
    seen = set()
    for record in replay(shared, "mmbench__llava-v1.5-13b"):
        doc = {letter: record["options"].get(letter, "nan") for letter in "ABCD"}
        found = verify(BENCHMARKS["mmbench_en_dev"], doc, record["response"], record["response"], RULES)
        assert found == Verification(record["response"], record["response"], True)
        seen.add((record["response"], len(record["options"])))
    assert len(seen) == 4 + 3 + 2


@pytest.mark.parametrize("rules", [RULES, RELAXED], ids=["exact", "relaxed"])
def test_every_real_chartqa_answer_agrees_with_itself(shared: Path, rules: AgreementRules) -> None:
    texts = [record["response"] for record in replay(shared, "chartqa__qwen2.5-vl-7b")]
    assert len(texts) == 2500
    for text in texts:
        found = verify(BENCHMARKS["chartqa"], NONE, text, f"{text.upper()}\n", rules)
        assert found == Verification(text.lower(), text.lower(), True)


def test_different_real_chartqa_answers_never_agree_with_the_exact_rule(shared: Path) -> None:
    texts = sorted({record["response"].lower() for record in replay(shared, "chartqa__qwen2.5-vl-7b")})
    for a, b in pairwise(texts):  # neighbours in sorted order are the most similar
        assert not verify(BENCHMARKS["chartqa"], NONE, a, b, RULES).agree
