"""The texts of a call. Its prompt: the templates equal those of Appendix C. Its answer: the content of the last double
brackets outside of reasoning tags; the text without this answer; its log-probability."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tasks import BUILT_IN, OFFICIAL, STAGE_2

from lmms_eval_mai.contract import Call, CallKey, Reply, TokenLogprobs
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.method import prompts
from lmms_eval_mai.method.agreement import extract_answer, without_answer
from lmms_eval_mai.method.benchmarks import benchmark_of
from lmms_eval_mai.method.calls import counted_call
from lmms_eval_mai.method.prompts import REASON_TRANSFER, STAGE2, AnswerForm

FORMS: tuple[AnswerForm, ...] = ("word", "letter")
REFERENCE_PROMPT = (
    "The following is a reference answer from a smaller model (it might be wrong or incomplete): {stage1_response}"
    "\n\n\n\n Please answer the question yourself, using the reference only if it seems reasonable.\n "
)


def test_the_reason_transfer_prompts_equal_those_of_appendix_c() -> None:
    """Prompt 1 is for a word, Prompt 2 for a letter. `tests/harness/test_tasks.py` compares all other templates."""
    for form in FORMS:
        papers = STAGE_2[form].replace("RESPONSE", "{stage1_response}")
        assert STAGE2[form] == REASON_TRANSFER["previous_thinking"][form] == papers
    in_brackets = OFFICIAL["mmmu_val letter"].replace("directly.", "directly in the format: [[answer]].")
    assert REASON_TRANSFER["reference"]["letter"] == REFERENCE_PROMPT + in_brackets
    assert REASON_TRANSFER["reference"]["word"] == REFERENCE_PROMPT + OFFICIAL["mmmu_val word"]  # Example 3 (B.6)


def test_each_benchmark_has_its_transfer_prompt_of_the_paper_and_other_tasks_have_prompt_2() -> None:
    for benchmark, form in product([*BUILT_IN, "shapes", "any"], FORMS):
        opening = "According to previous thinking: " if benchmark in ("pope", "chartqa") else REFERENCE_PROMPT[:58]
        assert prompts.transfer(benchmark_of(benchmark).transfer_prompt, "T", form).startswith(opening)
    assert prompts.transfer("previous_thinking", "T", "word") == prompts.stage2("T", "word")


def test_the_transfer_prompt_contains_the_thinking_unchanged() -> None:
    awkward = "First {stage1_response},\n\nthen {0} and {{}}: \\frac{1}{2} [[B]]\t "
    for name, form in product(REASON_TRANSFER, FORMS):
        before, after = REASON_TRANSFER[name][form].split("{stage1_response}")
        assert prompts.transfer(name, awkward, form) == before + awkward + after


def test_a_changed_template_or_limit_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {prompts.digest()}
    monkeypatch.setattr(prompts, "MAX_TOKENS", 409)
    digests.add(prompts.digest())
    for templates in (prompts.INSTRUCTIONS, prompts.STAGE2, prompts.REASON_TRANSFER["reference"]):
        monkeypatch.setitem(templates, next(iter(templates)), "Answer.")
        digests.add(prompts.digest())
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[[cat]], or rather [[dog]].", "dog"),
        ("", ""),
        ("[[yes]] no, [[ ]]", ""),
        ("[[\n two\nlines\tand a tab]]", "two\nlines\tand a tab"),
        ("[[ [[inner]] ]]", "inner"),
        ("It is [[2", "2"),  # with stop="]]"
        ("[[", ""),
        ("[[done]] and [[cut", "done"),
        ("<think>a</think><analysis>[[b]]</analysis>c", "c"),
        ("the tag was opened by the prompt [[no]]</think>\n[[yes]]", "yes"),
        ("<think>[[only a thought]]</think>", ""),
        ("[\x00[ 5\ud83d ]\x1f] \uffff", "5"),
    ],
)
def test_the_answer_is_the_content_of_the_last_double_brackets(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("It is round.\n\n[[ball\x07]] \n", "It is round."),
        ("It is round.\n\n[[ball]]\n\nA ball rolls.", "It is round.\n\nA ball rolls."),
        ("<think>[[box]] or [[ball]]</think> So it is a ball.", "<think>[[box]] or [[ball]]</think> So it is a ball."),
        ("Round. [[[ [[ [[ball]] ]] ]]]. So it is.", "Round.. So it is."),
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


def made(text: str, *tokens: tuple[str, float]) -> Call:
    logprobs = TokenLogprobs(tuple(text for text, _ in tokens), tuple(value for _, value in tokens))
    reply = Reply(text, "stop", 1, 0, len(tokens), None, None, 1.0, logprobs=logprobs)
    key = CallKey("pope_s", 0, 0, "small", "simple")
    return counted_call(key, reply, ScriptedEngine("small", lambda prompt: Answer(text)))


@pytest.mark.parametrize(
    ("text", "tokens", "logprob"),
    [
        ("[[yes]]", [("[[", -1.0), ("yes]]", -2.0)], -2.0),  # a token with a part of the answer counts as a whole
        ("Yes it is", [("Yes", -1.0), (" it is", -2.0), ("", -9.0)], -3.0),  # the whole text; no end token
        ("[[\u00e9]]", [("[[", -1.0), ("", -2.0), ("\u00e9", -3.0), ("]]", -4.0)], -5.0),  # two tokens
        ("[[]]", [("[[", -1.0), ("]]", -2.0)], None),
        ("[[yes]]", [("[[", -1.0), ("", -2.0)], -3.0),  # not found: all tokens
        ("[[4]]<think>[[14]]</think>", [("[[4]]", -1.0), ("<think>[[14]]</think>", -2.0)], -1.0),
        ("[[3]]. [[4 2]]", [("[[3]]. [[", -3.0), ("4", -0.5), (" 2", -0.25), ("]]", -6.0), ("", -7.0)], -0.75),
    ],
)
def test_log_probability_of_an_answer_counts_each_token_that_has_a_part_of_it(
    text: str, tokens: list[tuple[str, float]], logprob: float | None
) -> None:
    call = made(text, *tokens)
    assert (call.answer_logprob, call.logprobs) == (logprob, None)
