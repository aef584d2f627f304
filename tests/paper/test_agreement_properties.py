"""Properties of mutual verification for any answers, documents, rules and hash seeds."""

import copy
import json
import os
import random
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.answers import RULESETS, answers, documents, quick, two_answers
from support.documents import (
    ALL,
    DOCS,
    MMMU_CHOICE,
    MMMU_OPEN,
    RELAXED,
    RULES,
    mmmu_letter,
)

from lmms_eval_mai.paper.agreement import AgreementRules, extract_answer, verify
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC

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
        outcomes.append(verify(ALL[name], doc, *texts, rules))
        unmoved = (random.getstate(), str(np.random.get_state())) == states
        assert unmoved  # without pytest's comparison of 600 numbers
    one, other = outcomes[0], verify(ALL[name], doc, *reversed(texts), rules)
    assert outcomes[1] == one and doc == before
    assert (one.small, one.large, one.agree) == (other.large, other.small, other.agree)


@every_benchmark
@quick
@given(data=st.data(), text=answers(), rules=RULESETS)
def test_an_answer_agrees_with_itself_if_and_only_if_it_parses(
    name: str, data: st.DataObject, text: str, rules: AgreementRules
) -> None:
    doc = data.draw(documents(name))
    found = verify(ALL[name], doc, text, text, rules)
    assert found.small == found.large
    assert found.agree is (found.small is not None)
    assert found.small != ""


@quick
@given(doc=documents("mmmu_val").filter(lambda doc: doc is not MMMU_OPEN), text=answers())
@example(doc=MMMU_CHOICE, text="none")
@example(doc=MMMU_CHOICE, text="(C)")
def test_an_mmmu_letter_equals_the_scorers_letter_unless_the_scorer_guesses(doc: dict[str, Any], text: str) -> None:
    letter, guessed = mmmu_letter(doc, extract_answer(text))
    found = verify(BENCHMARKS["mmmu_val"], doc, text, text, RULES)
    assert found.small == (None if guessed else letter)


@quick
@given(a=answers(), b=answers())
@example(a="5.004", b="5")
@example(a="[[1,000]]", b="1000")
@example(a="nan", b="nan")
@example(a="x = 5", b="So it is 5.")
@example(a="$5", b="5")
@example(a=".", b="..")
def test_open_mmmu_answers_agree_if_lmms_eval_reads_or_normalises_them_to_the_same(a: str, b: str) -> None:
    from lmms_eval.tasks.mmmu.utils import normalize_str, parse_open_response

    texts = [extract_answer(text).lower() for text in (a, b)]
    # compared as texts, because the number nan does not equal itself
    read, normalised = ([set(map(str, rule(text))) for text in texts] for rule in (parse_open_response, normalize_str))
    same = (read[0] == read[1] or normalised[0] == normalised[1]) and all(text.strip(" .") for text in texts)
    assert verify(BENCHMARKS["mmmu_val"], MMMU_OPEN, a, b, RULES).agree is same


@quick
@given(text=st.text("[]{}()'\",:1 -a", max_size=12))
@example(text="{{1}, {2}}")
def test_options_that_are_not_a_python_list_never_raise(text: str) -> None:
    doc = {"options": text}
    assert GENERIC.kind(doc) in ("word", "letter")
    assert verify(GENERIC, doc, "Red", "red", RULES).agree is (GENERIC.kind(doc) == "word")


# --- hash order ---------------------------------------------------------------------------------------------

_CHILD = """
import json, sys
from lmms_eval_mai.paper.agreement import AgreementRules, verify
from lmms_eval_mai.paper.benchmarks import BENCHMARKS, GENERIC
rules = AgreementRules(chartqa_match="relaxed")
rules_of = {**BENCHMARKS, "any": GENERIC}
found = [verify(rules_of[name], doc, a, b, rules) for name, doc, a, b in json.load(open(sys.argv[1]))]
json.dump([[one.small, one.large, one.agree] for one in found], sys.stdout)
"""


def fixed_pairs() -> list[tuple[str, dict[str, Any], str, str]]:
    """Return each benchmark's documents with pairs of texts.

    lmms-eval puts the candidates of an open MMMU answer into a set. The last texts have several candidates in common.
    """
    texts = ["(B)", "red or green", "yes", "104", "12,300", ""]  # one for each way to read an answer
    texts += ["the green one is the first that I can see", "therefore 5, 6, 7, 8 or 9 = 5"]
    colours = ["red", "green", "blue", "black", "white"]
    texts += ["\n".join(f"so it is {colour}" for colour in colours if colour != other) for other in colours]
    docs = [(name, doc) for name in ALL for doc in DOCS[name]]
    return [(name, doc, a, b) for name, doc in docs for a, b in product(texts, texts)]


@pytest.mark.long
def test_outcomes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    pairs = fixed_pairs()
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps(pairs))
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(file)],
        env={**os.environ, "PYTHONHASHSEED": other_seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # lmms-eval logs a line for many answers to MMBench
        text=True,
        check=True,
    )
    here = [verify(ALL[name], doc, a, b, RELAXED) for name, doc, a, b in pairs]
    for pair, one, found in zip(pairs, here, json.loads(child.stdout), strict=True):
        assert [one.small, one.large, one.agree] == found, pair
    assert {one.agree for one in here} == {True, False}
