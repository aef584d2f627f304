"""The answer in a model's text: the content of the last double brackets outside of reasoning tags. And the text without
this answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmms_eval_mai.method.agreement import extract_answer, without_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[[cat]], or rather [[dog]].", "dog"),
        ("  plain text \n", "plain text"),
        ("", ""),
        ("[[yes]] no, [[ ]]", ""),
        ("[[\n two\nlines\tand a tab]]", "two\nlines\tand a tab"),
        ("[[a [b] c]]", "a [b] c"),
        ("[[ [[inner]] ]]", "inner"),
        ("[[[three]]]", "three"),
        ("[[half closed]", "[[half closed]"),
        ("It is [[2", "2"),  # with stop="]]"
        ("[[", ""),
        (" [[ ] ", ""),
        ("[[[]]]", ""),
        ("[[done]] and [[cut", "done"),
        ("<think>maybe [[no]]</think> Yes", "Yes"),
        ("<think>a</think><analysis>[[b]]</analysis>c", "c"),
        ("the tag was opened by the prompt [[no]]</think>\n[[yes]]", "yes"),
        ("<think>[[only a thought]]</think>", ""),
        ("<think>cut short after [[7]]", ""),
        ("[\x00[ 5\ud83d ]\x1f] \uffff", "5"),
    ],
)
def test_the_answer_is_the_content_of_the_last_double_brackets(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("It is round.\n\n[[ball\x07]] \n", "It is round."),
        ("[[cat]], or rather [[dog]].", "[[cat]], or rather."),
        ("It is round.\n\n[[ball]]\n\nA ball rolls.", "It is round.\n\nA ball rolls."),
        ("<think>[[box]] or [[ball]]</think> So it is a ball.", "<think>[[box]] or [[ball]]</think> So it is a ball."),
        ("<think>Round, [[?]].</think> [[ball]]", "<think>Round, [[?]].</think>"),
        ("Round. [[[ [[ [[ball]] ]] ]]]. So it is.", "Round.. So it is."),
        ("A list: [[ [[ball]] and more.", "A list: [[ and more."),
        ("It is round. [[ball", "It is round."),
        ("[[unclosed", "[[unclosed"),
        (" [[ball]] ", " [[ball]] "),
    ],
)
def test_the_last_brackets_and_the_space_before_them_are_cut_from_the_text(text: str, rest: str) -> None:
    assert without_answer(text) == rest


@settings(max_examples=100, deadline=None)
@given(st.text("[]a <think>/", max_size=30))
def test_answer_of_any_text_is_a_stripped_part_of_it_and_the_text_without_it_is_shorter_and_not_empty(
    text: str,
) -> None:
    answer, rest = extract_answer(text), without_answer(text)
    assert answer == answer.strip() and answer in text
    assert rest == text or 0 < len(rest) < len(text)
