"""The answer in a model's text: the content of the last double brackets outside of reasoning tags. And the text without
this answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmms_eval_mai.paper.agreement import extract_answer, without_answer


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
        ("[[5\x07]]", "5"),
        ("[\x00[ 5 ]\x1f]", "5"),
        ("5 \x0b", "5"),
        ("[[5\ud83d]] \uffff", "5"),
        ("[[two\nlines\tand a tab]]", "two\nlines\tand a tab"),
    ],
)
def test_the_answer_is_the_content_of_the_last_double_brackets(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


_PLAIN = st.text(st.characters(exclude_characters="[]<>", exclude_categories=["Cc", "Cs"]) | st.just("\n"), max_size=12)


@settings(max_examples=100, deadline=None)
@given(_PLAIN, _PLAIN, _PLAIN, st.lists(_PLAIN, max_size=3))
def test_text_around_the_last_brackets_has_no_effect(answer: str, before: str, after: str, others: list[str]) -> None:
    earlier = "".join(f"[[{other}]]{before}" for other in others)
    assert extract_answer(f"{before}{earlier}[[{answer}]]{after}") == answer.strip()


@settings(max_examples=50, deadline=None)
@given(_PLAIN, _PLAIN)
def test_text_between_reasoning_tags_has_no_effect(answer: str, thought: str) -> None:
    assert extract_answer(f"<think>{thought}[[{thought}]]</think>{answer}") == answer.strip()


@settings(max_examples=100, deadline=None)
@given(st.text("[]a <think>/", max_size=30))
def test_the_answer_of_any_text_is_a_stripped_part_of_it(text: str) -> None:
    answer = extract_answer(text)
    assert answer == answer.strip()
    assert answer in text


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("It is round.\n\n[[ball]]", "It is round."),
        ("It is round. [[ball]] \n", "It is round."),
        ("[[cat]], or rather [[dog]].", "[[cat]], or rather."),
        ("The answer is [[B]] because of the sign.\n", "The answer is because of the sign."),
        ("It is round.\n\n[[ball]]\n\nA ball rolls.", "It is round.\n\nA ball rolls."),
        ("<think>Round, [[?]].</think> [[ball]]", "<think>Round, [[?]].</think>"),
        ("<think>[[box]] or [[ball]]</think> So it is a ball.", "<think>[[box]] or [[ball]]</think> So it is a ball."),
        ("<think>It is a [[ball]].</think> ball", "<think>It is a [[ball]].</think> ball"),
        ("It is round. [[ball\x07]]", "It is round."),
        ("It is round. [[ [[ball]] ]]", "It is round."),
        ("Round. [[[ [[ [[ball]] ]] ]]]. So it is.", "Round.. So it is."),
        ("A list: [[ [[ball]] and more.", "A list: [[ and more."),
        ("no brackets \n", "no brackets \n"),
        ("[[unclosed", "[[unclosed"),
        (" [[ball]] ", " [[ball]] "),
        ("", ""),
    ],
)
def test_the_last_brackets_and_the_space_before_them_are_cut_from_the_text(text: str, rest: str) -> None:
    assert without_answer(text) == rest


@settings(max_examples=100, deadline=None)
@given(_PLAIN, _PLAIN, _PLAIN, st.lists(_PLAIN, max_size=2))
def test_text_around_the_last_brackets_is_kept(answer: str, before: str, after: str, others: list[str]) -> None:
    before += "".join(f"[[{other}]]{before}" for other in others)
    text = f"{before}[[{answer}]]{after}"
    assert without_answer(text) == ((before.rstrip() + after).rstrip() or text)


@settings(max_examples=100, deadline=None)
@given(st.text("[]a <think>/", max_size=30))
def test_text_that_loses_its_answer_is_shorter_and_not_empty(text: str) -> None:
    rest = without_answer(text)
    assert rest == text or 0 < len(rest) < len(text)
