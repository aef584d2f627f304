"""Hypothesis strategies for texts like those of models, and for documents of every benchmark."""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support.documents import LETTERS, MMMU_OPEN, RWQA_BARE, RWQA_OPEN, SHAPES_CHOICE, SHAPES_WORD

from lmms_eval_mai.method.agreement import AgreementRules, extract_answer

WORDS = ["red", "green", "blue", "banana", "apple", "nan", "a light blue car", "north america", "$7"]
ATOMS = """A|B|C|D|E|a|b|(A)|(B)|B.|**C**|B: green|A or B|Bird|\\boxed{B}|A photo of a car|I choose C, not D
yes|Yes|No|n|Yes.|"Yes"|Not sure|Nothing|None|yes and no|There is no dog
0|0.0|-1|5|5%|95|100|104|105.1|2018|2019|1,000|1000|12,300|1e3|inf|.5|$5
x = 5|y = 5|so it is 5, or 6|the result is 12,300 = 1e3|north amerika|a car|a cat|a                cat||.|..|[[|]]"""
ATOMS = [*WORDS, " ", *(atom for line in ATOMS.split("\n") for atom in line.split("|"))]
FORMS = [
    "{}",
    "{}.",
    "**{}**",
    "[[{}]]",
    "[[ {}\x07]]",
    "\x00{}",
    "The answer is {}",
    "\\boxed{{{}}}",
    "<think>A</think>{}",
]

RULESETS = st.builds(
    AgreementRules,
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.sampled_from(["strict", "anls"]),
    st.sampled_from(["exact", "relaxed"]),
)
EXAMPLES = int(os.environ.get("LMMS_EVAL_MAI_TEST_EXAMPLES", 10))
"""Examples per property. `make test-long` tries more."""
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answers() -> st.SearchStrategy[str]:
    """Texts like those of models: often in brackets, often equal to another one, sometimes arbitrary."""
    atom = st.sampled_from(ATOMS) | st.text(max_size=8)
    sentence = st.builds("{} {}".format, st.sampled_from(["The answer is", "So", "I choose", "Look:"]), atom)
    bare = atom | sentence
    wrapped = st.builds("{}[[{}]]{}".format, st.sampled_from(["", "First 3, then ", "[[B]] "]), atom, st.just("."))
    thought = st.builds("<think>{}</think>{}".format, atom, bare | wrapped)
    return bare | wrapped | thought


@st.composite
def two_answers(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts. Often they are equal, or the second one has the answer of the first one in another form."""
    a = draw(answers())
    same = st.sampled_from([extract_answer(a), extract_answer(a).upper(), extract_answer(a).lower()])
    respelled = st.builds(lambda form, text: form.format(text), st.sampled_from(FORMS), same)
    return a, draw(st.just(a) | respelled | answers())


def documents(name: str) -> st.SearchStrategy[dict[str, Any]]:
    options = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4, unique=True)
    if name == "mmmu_val":
        choice = st.builds(lambda o: {"question_type": "multiple-choice", "options": str(o)}, options)
        return choice | st.just(MMMU_OPEN)
    columns = options.map(lambda o: {**dict.fromkeys("ABCD", "nan"), **dict(zip("ABCD", o, strict=False))})
    if name == "mmbench_en_dev":
        return columns
    if name == "shapes":
        return st.sampled_from([SHAPES_CHOICE, SHAPES_WORD])
    if name == "realworldqa":
        more = st.lists(st.sampled_from(WORDS), min_size=2, max_size=6, unique=True)
        listed = more.map(lambda o: "Which?\n" + "\n".join(f"{'ABCDEF'[i]}. {word}" for i, word in enumerate(o)))
        return listed.map(lambda question: {"question": question}) | st.sampled_from([RWQA_BARE, RWQA_OPEN])
    if name == "any":
        return st.sampled_from([LETTERS, {}])
    return st.just({})
