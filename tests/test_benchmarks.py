"""Mutual verification against tables of answers, generated answers, and real answers of real models."""

import ast
import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmms_eval_mai.benchmarks import ANY, BENCHMARKS, Rules, Verification, extract_answer, verify

RULES = Rules()
RELAXED = Rules(chartqa_match="relaxed")
ALL = {**BENCHMARKS, "any": ANY}

MMMU_CHOICE = {"question_type": "multiple-choice", "options": "['red', 'green', 'blue', 'orange']"}
MMMU_OPEN = {"question_type": "open", "options": "[]"}
MMBENCH_FOUR = {"A": "red", "B": "green", "C": "blue", "D": "orange"}
MMBENCH_TWO = {"A": "banana", "B": "apple", "C": "nan", "D": "nan"}
MMBENCH_HOLES = {"A": "red", "B": "green", "C": float("nan"), "D": None}
LETTER_ONLY = "Please answer directly with only the letter of the correct option and nothing else."
RWQA_CHOICE = {"question": f"Which side?\n\nA. Left.\nB. Right.\nC. None.\n\n{LETTER_ONLY}"}
RWQA_BARE = {"question": f"Which of the four? {LETTER_ONLY}"}
RWQA_OPEN = {"question": "How many cars?\n\nPlease answer directly with a single word or number."}
NONE: dict[str, Any] = {}

# benchmark, document, one answer, another answer, whether they are the same
TABLE: list[tuple[str, dict[str, Any], str, str, bool]] = [
    # POPE: yes or no at the start, and nothing that merely holds these letters.
    ("pope", NONE, "Yes", "yes", True),
    ("pope", NONE, "[[No]]", "no.", True),
    ("pope", NONE, "**Yes**", "Yes, there is a dog.", True),
    ("pope", NONE, "y", "YES", True),
    ("pope", NONE, "N", "No", True),
    ("pope", NONE, "Yes", "No", False),
    ("pope", NONE, "Not sure", "No", False),
    ("pope", NONE, "Not sure", "Not sure", False),
    ("pope", NONE, "Nothing", "Nothing", False),
    ("pope", NONE, "None", "no", False),
    ("pope", NONE, "Yesterday", "yes", False),
    ("pope", NONE, "There is no dog", "no", False),
    ("pope", NONE, "", "", False),
    ("pope", NONE, "I cannot tell.", "I cannot tell.", False),
    # MMMU, multiple choice: where lmms-eval would draw a letter, there is no answer.
    ("mmmu_val", MMMU_CHOICE, "B", "(B)", True),
    ("mmmu_val", MMMU_CHOICE, "[[C]]", "C. blue", True),
    ("mmmu_val", MMMU_CHOICE, "The first colour to be seen is green", "B", True),
    ("mmmu_val", MMMU_CHOICE, "A", "B", False),
    ("mmmu_val", MMMU_CHOICE, "E", "E", False),
    *(("mmmu_val", MMMU_CHOICE, text, text, False) for text in ("", "none", "**D**", "\\boxed{B}", "a", "B: green")),
    # MMMU, open: the scorer's own equality, which rounds numbers, but in both directions.
    ("mmmu_val", MMMU_OPEN, "12,300", "12300.0", True),
    ("mmmu_val", MMMU_OPEN, "5", "5.001", True),
    ("mmmu_val", MMMU_OPEN, "Sodium chloride", "sodium chloride", True),
    ("mmmu_val", MMMU_OPEN, "5", "6", False),
    ("mmmu_val", MMMU_OPEN, "cat", "cats", False),
    ("mmmu_val", MMMU_OPEN, "the answer is 5", "5", False),
    ("mmmu_val", MMMU_OPEN, "x = 3", "y = 3", False),
    ("mmmu_val", MMMU_OPEN, "a", "a b", False),
    ("mmmu_val", MMMU_OPEN, "", "", False),
    # MMBench: letters of options that exist; "nan" and empty columns are none.
    ("mmbench_en_dev", MMBENCH_FOUR, "D", "[[D.]]", True),
    ("mmbench_en_dev", MMBENCH_FOUR, "It is orange", "D", True),
    ("mmbench_en_dev", MMBENCH_FOUR, "A", "B", False),
    ("mmbench_en_dev", MMBENCH_FOUR, "red and blue", "red and blue", False),
    ("mmbench_en_dev", MMBENCH_FOUR, "E", "E", False),
    ("mmbench_en_dev", MMBENCH_TWO, "a ripe banana", "A", True),
    ("mmbench_en_dev", MMBENCH_TWO, "nan", "nan", False),
    ("mmbench_en_dev", MMBENCH_TWO, "C", "C", False),
    ("mmbench_en_dev", MMBENCH_TWO, "D", "nan", False),
    ("mmbench_en_dev", MMBENCH_HOLES, "B", "green", True),
    ("mmbench_en_dev", MMBENCH_HOLES, "C", "C", False),
    ("mmbench_en_dev", MMBENCH_HOLES, "none", "none", False),
    ("mmbench_en_dev", MMBENCH_FOUR, "", "", False),
    # ChartQA: the same text.
    ("chartqa", NONE, "Blue", " blue", True),
    ("chartqa", NONE, "100", "104", False),
    ("chartqa", NONE, "0", "0.0", False),
    ("chartqa", NONE, "", "", False),
    # InfoVQA: nearly the same words, and the same numbers.
    ("infovqa_val", NONE, "two thousand people", "two thousand peoples", True),
    ("infovqa_val", NONE, "North  America", "north america", True),
    ("infovqa_val", NONE, "2019", "2018", False),
    ("infovqa_val", NONE, "19", "18", False),
    ("infovqa_val", NONE, "the end of the year 2019", "the end of the year 2018", False),
    ("infovqa_val", NONE, "1.5 million", "1.5 billion", False),
    ("infovqa_val", NONE, "North America", "South America", False),
    ("infovqa_val", NONE, "", "", False),
    # RealWorldQA: a letter that the question lists, or the open answer as its scorer reads it.
    ("realworldqa", RWQA_CHOICE, "B", "(B)", True),
    ("realworldqa", RWQA_CHOICE, "The answer is C", "C.", True),
    ("realworldqa", RWQA_CHOICE, "Bird", "B", False),
    ("realworldqa", RWQA_CHOICE, "Bird", "Bird", False),
    ("realworldqa", RWQA_CHOICE, "D", "D", False),
    ("realworldqa", RWQA_CHOICE, "A", "C", False),
    ("realworldqa", RWQA_CHOICE, "", "", False),
    ("realworldqa", RWQA_BARE, "D", "d) D", True),
    ("realworldqa", RWQA_BARE, "left", "left", False),
    ("realworldqa", RWQA_OPEN, "3", "3.", True),
    ("realworldqa", RWQA_OPEN, "Downhill", "downhill", True),
    ("realworldqa", RWQA_OPEN, "A", "a", True),
    ("realworldqa", RWQA_OPEN, "3", "three", False),
    ("realworldqa", RWQA_OPEN, ".", ".", False),
    # A task that is not ours: letters where the document shows options, else the same text.
    ("any", {"options": ["red", "green"]}, "B", "(B)", True),
    ("any", {"options": ["red", "green"]}, "C", "C", False),
    ("any", {"options": ["red", "green"]}, "red", "red", False),
    ("any", {"options": "['red', 'green', 'blue']"}, "C", "The answer is C", True),
    ("any", {"options": "['red', 'green', 'blue']"}, "D", "D", False),
    ("any", {"choices": {"A": "red", "B": "green"}}, "A.", "A", True),
    ("any", MMBENCH_TWO, "B", "B", True),
    ("any", MMBENCH_TWO, "C", "C", False),
    ("any", {"A": 0, "B": 1, "C": 2, "D": 3}, "A", "A", True),
    ("any", {"options": "red or green"}, "Red", "red", True),
    ("any", {"options": "['only one']"}, "Red", "red", True),
    ("any", {"A": "a lone column"}, "C", "c", True),
    ("any", NONE, "Forty two", "forty two ", True),
    ("any", NONE, "42", "42.", False),
    ("any", NONE, "", "", False),
]


@pytest.mark.parametrize(("name", "doc", "a", "b", "same"), TABLE)
def test_two_answers_agree_exactly_when_the_table_says_so(
    name: str, doc: dict[str, Any], a: str, b: str, same: bool
) -> None:
    assert verify(ALL[name], doc, a, b, RULES).agree is same
    assert verify(ALL[name], doc, b, a, RULES).agree is same


def test_every_benchmark_has_answers_that_agree_and_answers_that_do_not() -> None:
    assert {(name, same) for name, _, _, _, same in TABLE} == set(product(ALL, (True, False)))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("100", "104", True),
        ("50%", "0.51", True),
        ("-100", "-104", True),
        ("Blue", "blue", True),
        ("0", "0", True),
        ("inf", "inf", True),  # whose relative change is no number
        ("105.1", "100", False),  # 105.1 is 5.1 % off 100, though 100 is 4.9 % off 105.1
        ("95", "100", False),  # 95 is 5 % off 100, but 100 is 5.3 % off 95
        ("0", "0.0", False),  # a target of zero is compared as text
        ("0", "0.01", False),
        ("100", "-100", False),
        ("1,000", "1000", False),
        ("inf", "5", False),
        ("blue", "green", False),
        ("", "", False),
    ],
)
def test_relaxed_chartqa_asks_for_the_tolerance_in_both_directions(a: str, b: str, same: bool) -> None:
    assert verify(BENCHMARKS["chartqa"], NONE, a, b, RELAXED).agree is same
    assert verify(BENCHMARKS["chartqa"], NONE, b, a, RELAXED).agree is same


def test_the_anls_threshold_of_infovqa_is_the_users() -> None:
    answers = "Microsoft Windows", "Microsoft Window"  # ANLS 0.94
    assert verify(BENCHMARKS["infovqa_val"], NONE, *answers, Rules(anls_threshold=0.94)).agree
    assert not verify(BENCHMARKS["infovqa_val"], NONE, *answers, Rules(anls_threshold=0.95)).agree


def test_no_anls_threshold_makes_two_numbers_the_same() -> None:
    assert not verify(BENCHMARKS["infovqa_val"], NONE, "2019", "2018", Rules(anls_threshold=0.0)).agree


def test_every_benchmark_is_filed_under_its_own_name() -> None:
    assert [benchmark.name for benchmark in ALL.values()] == list(ALL)


def test_a_verification_tells_what_was_parsed() -> None:
    text = "The sign points there. [[**No**]]"
    assert verify(BENCHMARKS["pope"], NONE, text, "Nothing", RULES) == Verification("no", None, False)
    assert verify(BENCHMARKS["mmmu_val"], MMMU_CHOICE, "(B)", "none", RULES) == Verification("B", None, False)


@pytest.mark.parametrize(
    ("name", "doc", "kind"),
    [
        ("pope", NONE, "word"),
        ("chartqa", NONE, "word"),
        ("infovqa_val", NONE, "word"),
        ("mmbench_en_dev", MMBENCH_FOUR, "letter"),
        ("mmmu_val", MMMU_CHOICE, "letter"),
        ("mmmu_val", MMMU_OPEN, "word"),
        ("realworldqa", RWQA_CHOICE, "letter"),
        ("realworldqa", RWQA_BARE, "letter"),
        ("realworldqa", RWQA_OPEN, "word"),
        ("any", NONE, "word"),
        ("any", MMBENCH_TWO, "letter"),
        ("any", {"choices": ["x", "y"]}, "letter"),
        ("any", {"options": "['x']"}, "word"),
    ],
)
def test_the_document_decides_between_a_word_and_a_letter(name: str, doc: dict[str, Any], kind: str) -> None:
    assert ALL[name].kind(doc) == kind


def test_choices_that_must_not_be_guessed_cannot_be_drawn_on_any_python() -> None:
    """Python 3.10's random.choice takes `choices[0]` of an empty sequence; 3.11's asks for its length."""
    from lmms_eval_mai.benchmarks import _NoGuess

    choices = _NoGuess(["A", "B"])
    assert [choice for choice in choices] == ["A", "B"]
    for draw in (random.choice, lambda sequence: sequence[0]):
        with pytest.raises(IndexError):
            draw(choices)


# --- extract_answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is round. [[ball]]", "ball"),
        ("[[cat]], or rather [[dog]].", "dog"),
        ("  plain text \n", "plain text"),
        ("", ""),
        ("[[]]", ""),
        ("[[ ]]", ""),
        ("[[yes]] no, [[]]", ""),
        ("[[\n 12\n]]", "12"),
        ("[[two\nlines]]", "two\nlines"),
        ("[[a [b] c]]", "a [b] c"),
        ("[[ [[inner]] ]]", "inner"),
        ("[[[three]]]", "three"),
        ("[[lopsided]]]", "lopsided"),
        ("[single]", "[single]"),
        ("[[unclosed", "[[unclosed"),
        ("[[half closed]", "[[half closed]"),
        ("[[done]] and [[cut", "done"),
        ("not opened]]", "not opened]]"),
        ("<think>[[no]]</think>[[yes]]", "yes"),
        ("<think>maybe [[no]]</think> Yes", "Yes"),
        ("<think>a</think><think>[[b]]</think>c", "c"),
        ("<analysis>[[no]]</analysis>yes", "yes"),
        ("the tag was opened by the prompt [[no]]</think>\n[[yes]]", "yes"),
        ("<think>[[only a thought]]</think>", ""),
        ("<think>cut short after [[7]]", "7"),
    ],
)
def test_the_answer_is_what_the_last_double_brackets_hold(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


_PLAIN = st.text(st.characters(exclude_characters="[]<>", exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(_PLAIN, _PLAIN, _PLAIN, st.lists(_PLAIN, max_size=3))
def test_text_around_the_last_brackets_does_not_count(answer: str, before: str, after: str, others: list[str]) -> None:
    earlier = "".join(f"[[{other}]]{before}" for other in others)
    assert extract_answer(f"{before}{earlier}[[{answer}]]{after}") == answer.strip()


@settings(max_examples=50, deadline=None)
@given(_PLAIN, _PLAIN)
def test_thoughts_between_tags_do_not_count(answer: str, thought: str) -> None:
    assert extract_answer(f"<think>{thought}[[{thought}]]</think>{answer}") == answer.strip()


@settings(max_examples=100, deadline=None)
@given(st.text("[]a <think>/", max_size=30))
def test_no_text_makes_extraction_fail_or_leaves_space_around_the_answer(text: str) -> None:
    answer = extract_answer(text)
    assert answer == answer.strip()
    assert answer in text


# --- properties over generated answers and documents -------------------------------------------------------

WORDS = ["red", "green", "blue", "banana", "apple", "nan", "a light blue car", "north america", "$7"]
ATOMS = [
    *"ABCDE",
    "a",
    "b",
    "(A)",
    "(B)",
    "B.",
    "**C**",
    "B: green",
    "A or B",
    "Bird",
    "\\boxed{B}",
    "A photo of a car",
]
ATOMS += ["yes", "No", "n", "Yes.", "Not sure", "Nothing", "None", "yes and no", "There is no dog"]
ATOMS += [
    "0",
    "0.0",
    "-1",
    "5",
    "5%",
    "95",
    "100",
    "104",
    "105.1",
    "2018",
    "2019",
    "1,000",
    "12,300",
    "1e3",
    "inf",
    ".5",
]
ATOMS += ["x = 5", "so it is 5, or 6", "the result is 12,300 = 1e3", "north amerika", "", " ", ".", "[[", "]]", *WORDS]


def answers() -> st.SearchStrategy[str]:
    """Texts as models write them: often in brackets, often the same as another one, sometimes anything at all."""
    atom = st.sampled_from(ATOMS) | st.text(max_size=8)
    sentence = st.builds("{} {}".format, st.sampled_from(["The answer is", "So", "I choose", "Look:"]), atom)
    bare = atom | sentence
    wrapped = st.builds("{}[[{}]]{}".format, st.sampled_from(["", "First 3, then ", "[[B]] "]), atom, st.just("."))
    thought = st.builds("<think>{}</think>{}".format, atom, bare | wrapped)
    return bare | wrapped | thought


def documents(name: str) -> st.SearchStrategy[dict[str, Any]]:
    options = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4, unique=True)
    if name == "mmmu_val":
        choice = st.builds(lambda o: {"question_type": "multiple-choice", "options": str(o)}, options)
        return choice | st.just(MMMU_OPEN)
    columns = options.map(lambda o: {**dict.fromkeys("ABCD", "nan"), **dict(zip("ABCD", o, strict=False))})
    if name == "mmbench_en_dev":
        return columns
    if name == "realworldqa":
        listed = options.map(lambda o: "Which?\n" + "\n".join(f"{'ABCD'[i]}. {word}" for i, word in enumerate(o)))
        return listed.map(lambda question: {"question": question}) | st.sampled_from([RWQA_BARE, RWQA_OPEN])
    if name == "any":
        lists = st.builds(lambda key, o: {key: o}, st.sampled_from(["options", "choices"]), options | options.map(str))
        return (
            columns | lists | st.builds(lambda text: {"options": text}, st.text("[]'a,1 ", max_size=10)) | st.just({})
        )
    return st.just({})


RULESETS = st.builds(Rules, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from(["exact", "relaxed"]))
every_benchmark = pytest.mark.parametrize("name", ALL)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def two_answers(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts; every other time the same answer said twice."""
    a = draw(answers())
    return a, draw(st.just(a) | answers())


@every_benchmark
@quick
@given(data=st.data(), texts=two_answers(), rules=RULESETS)
def test_agreement_is_symmetric(name: str, data: st.DataObject, texts: tuple[str, str], rules: Rules) -> None:
    doc = data.draw(documents(name))
    one, other = verify(ALL[name], doc, *texts, rules), verify(ALL[name], doc, *reversed(texts), rules)
    assert (one.small, one.large, one.agree) == (other.large, other.small, other.agree)


@every_benchmark
@quick
@given(data=st.data(), texts=two_answers(), rules=RULESETS, seeds=st.tuples(st.integers(), st.integers()))
def test_verification_neither_reads_nor_moves_the_global_random_state_nor_the_document(
    name: str, data: st.DataObject, texts: tuple[str, str], rules: Rules, seeds: tuple[int, int]
) -> None:
    doc = data.draw(documents(name))
    before, outcomes = copy.deepcopy(doc), []
    for seed in seeds:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        states = random.getstate(), str(np.random.get_state())
        outcomes.append(verify(ALL[name], doc, *texts, rules))
        unmoved = (random.getstate(), str(np.random.get_state())) == states
        assert unmoved  # without pytest's comparison of 600 numbers
    assert outcomes[0] == outcomes[1]
    assert doc == before


@every_benchmark
@quick
@given(data=st.data(), blank=st.text(" \n\t", max_size=3), other=answers(), rules=RULESETS)
def test_an_empty_answer_agrees_with_nothing_not_even_with_another_one(
    name: str, data: st.DataObject, blank: str, other: str, rules: Rules
) -> None:
    doc = data.draw(documents(name))
    empty = data.draw(st.sampled_from([blank, f"Yes [[{blank}]]", f"<think>A</think>{blank}"]))
    for text in (other, empty):
        found = verify(ALL[name], doc, empty, text, rules)
        assert (found.small, found.agree) == (None, False)


@every_benchmark
@quick
@given(data=st.data(), text=answers(), rules=RULESETS)
def test_an_answer_agrees_with_itself_exactly_when_it_parses(
    name: str, data: st.DataObject, text: str, rules: Rules
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
def test_an_mmmu_letter_is_the_scorers_own_and_never_a_drawn_one(doc: dict[str, Any], text: str) -> None:
    letter, guessed = mmmu_letter(doc, extract_answer(text))
    found = verify(BENCHMARKS["mmmu_val"], doc, text, text, RULES)
    assert found.small == (None if guessed else letter)


@quick
@given(a=answers(), b=answers())
@example(a="5.004", b="5")
@example(a="[[1,000]]", b="1000")
def test_open_mmmu_answers_agree_when_lmms_eval_normalises_them_to_the_same(a: str, b: str) -> None:
    from lmms_eval.tasks.mmmu.utils import normalize_str

    texts = [extract_answer(text).lower() for text in (a, b)]
    same = normalize_str(texts[0]) == normalize_str(texts[1]) and all(texts)
    assert verify(BENCHMARKS["mmmu_val"], MMMU_OPEN, a, b, RULES).agree is same


@quick
@given(text=st.text("[]{}()'\",:1 -a", max_size=12))
@example(text="{{1}, {2}}")
def test_options_that_are_no_python_list_never_raise(text: str) -> None:
    doc = {"options": text}
    assert ANY.kind(doc) in ("word", "letter")
    assert verify(ANY, doc, "Red", "red", RULES).agree is (ANY.kind(doc) == "word")


# --- hash order ---------------------------------------------------------------------------------------------

_CHILD = """
import json, sys
from lmms_eval_mai.benchmarks import ANY, BENCHMARKS, Rules, verify
rules = Rules(chartqa_match="relaxed")
found = [verify({**BENCHMARKS, "any": ANY}[name], doc, a, b, rules) for name, doc, a, b in json.load(open(sys.argv[1]))]
json.dump([[one.small, one.large, one.agree] for one in found], sys.stdout)
"""


DOCS = {
    "pope": [NONE],
    "mmmu_val": [MMMU_CHOICE, MMMU_OPEN],
    "mmbench_en_dev": [MMBENCH_FOUR],
    "chartqa": [NONE],
    "infovqa_val": [NONE],
    "realworldqa": [RWQA_CHOICE, RWQA_OPEN],
    "any": [{"options": ["red", "green"]}, NONE],
}


def fixed_pairs() -> list[tuple[str, dict[str, Any], str, str]]:
    """Every benchmark's documents with pairs of texts. lmms-eval makes a set of the candidates of an open MMMU answer:
    those of the last texts have several strings in common."""
    texts = [
        "A",
        "(B)",
        "B. green",
        "red or green",
        "yes",
        "Not sure",
        "100",
        "104",
        "2018",
        "12,300",
        "",
        "north america",
    ]
    texts += ["the green one is the first that I can see", "therefore 5, 6, 7, 8 or 9 = 5"]
    colours = ["red", "green", "blue", "black", "white"]
    texts += ["\n".join(f"so it is {colour}" for colour in colours if colour != other) for other in colours]
    docs = [(name, doc) for name in ALL for doc in DOCS[name]]
    return [(name, doc, a, b) for name, doc in docs for a, b in product(texts, texts)]


def test_outcomes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    pairs = fixed_pairs()
    asked = tmp_path / "pairs.json"
    asked.write_text(json.dumps(pairs))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(asked)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # lmms-eval logs a line for many of MMBench's answers
            text=True,
        )
        for seed in ("1", "2")
    ]
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    here = [verify(ALL[name], doc, a, b, RELAXED) for name, doc, a, b in pairs]
    for pair, one, *children_found in zip(pairs, here, *map(json.loads, outputs), strict=True):
        assert [[one.small, one.large, one.agree]] * 2 == children_found, pair
    assert {one.agree for one in here} == {True, False}


# --- real answers of real models ---------------------------------------------------------------------------


def replay(shared: Path, name: str) -> Iterator[dict[str, Any]]:
    with (shared / "data" / "replay" / f"{name}.jsonl").open() as lines:
        yield from map(json.loads, lines)


def mmmu_letter(doc: dict[str, Any], text: str) -> tuple[str, bool]:
    """What lmms-eval's scorer makes of a text, and whether it drew the letter: its outcome then hangs on the seed,
    and the state of the generator has moved."""
    from lmms_eval.tasks.mmmu.utils import get_multi_choice_info, parse_multi_choice_response

    index2ans, choices = get_multi_choice_info(ast.literal_eval(doc["options"]))
    letters, moved = [], []
    kept = random.getstate()
    for seed in (1, 2, 3, 4, 5):
        random.seed(seed)
        state = random.getstate()
        letters.append(parse_multi_choice_response(text, choices, index2ans))
        moved.append(random.getstate() != state)
    random.setstate(kept)
    assert len(set(letters)) == 1 or all(moved)
    return letters[0], all(moved)


def mmmu_doc(record: dict[str, Any]) -> dict[str, Any]:
    if record["question_type"] == "short-answer":
        return MMMU_OPEN
    return {"question_type": "multiple-choice", "options": str(list(record["options"].values()))}


def test_real_pope_answers_agree_exactly_when_they_are_the_same_word(shared: Path) -> None:
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
    """(document, LLaVA-1.5's answer, Qwen-VL's answer) of MMMU's 900 validation questions."""
    llava = {record["qid"]: record for record in replay(shared, "mmmu_val__llava1.5_13b")}
    qwen = {record["qid"]: record for record in replay(shared, "mmmu_val__qwen_vl")}
    assert llava.keys() == qwen.keys()
    assert len(llava) == 900
    return [(mmmu_doc(llava[qid]), llava[qid]["response"], qwen[qid]["response"]) for qid in llava]


def test_real_mmmu_letters_agree_when_they_are_equal_and_neither_had_to_be_guessed(
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


def test_real_open_mmmu_answers_agree_when_they_are_the_same_number_or_text(
    mmmu_pairs: list[tuple[dict[str, Any], str, str]],
) -> None:
    texts = sorted({text for doc, *pair in mmmu_pairs if doc is MMMU_OPEN for text in pair})
    assert len(texts) > 50

    def plain(text: str) -> float | str:
        try:
            return round(float(text.replace(",", "")), 2)
        except ValueError:
            return text.strip().lower()

    agreed = 0
    for a, b in product(texts, texts):
        agree = verify(BENCHMARKS["mmmu_val"], MMMU_OPEN, a, b, RULES).agree
        assert agree is (plain(a) == plain(b)), (a, b)
        agreed += agree
    assert len(texts) <= agreed < len(texts) ** 2


def test_real_mmbench_letters_parse_as_themselves(shared: Path) -> None:
    seen = set()
    for record in replay(shared, "mmbench__llava-v1.5-13b"):
        doc = {letter: record["options"].get(letter, "nan") for letter in "ABCD"}
        found = verify(BENCHMARKS["mmbench_en_dev"], doc, record["response"], record["response"], RULES)
        assert found == Verification(record["response"], record["response"], True)
        seen.add((record["response"], len(record["options"])))
    assert len(seen) == 4 + 3 + 2


@pytest.mark.parametrize("rules", [RULES, RELAXED], ids=["exact", "relaxed"])
def test_every_real_chartqa_answer_agrees_with_itself(shared: Path, rules: Rules) -> None:
    texts = [record["response"] for record in replay(shared, "chartqa__qwen2.5-vl-7b")]
    assert len(texts) == 2500
    for text in texts:
        found = verify(BENCHMARKS["chartqa"], NONE, text, f"{text.upper()}\n", rules)
        assert found == Verification(text.lower(), text.lower(), True)


def test_no_two_different_real_chartqa_answers_agree_by_the_exact_rule(shared: Path) -> None:
    texts = sorted({record["response"].lower() for record in replay(shared, "chartqa__qwen2.5-vl-7b")})
    for a, b in pairwise(texts):  # neighbours in order are the likeliest to be taken for the same
        assert not verify(BENCHMARKS["chartqa"], NONE, a, b, RULES).agree
