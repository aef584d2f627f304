"""What `counted_call` adds to each call: the time at which it started, and the log-probability of its answer."""

import time

import pytest

from lmms_eval_mai.contract import Call, CallKey, Reply, TokenLogprobs
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.method.calls import counted_call


def made(text: str, *tokens: tuple[str, float]) -> Call:
    logprobs = TokenLogprobs(tuple(text for text, _ in tokens), tuple(value for _, value in tokens))
    reply = Reply(text, "stop", 1, 0, len(tokens), None, None, 1.0, logprobs=logprobs)
    key = CallKey("pope_s", 0, 0, "small", "simple")
    return counted_call(key, reply, ScriptedEngine("small", lambda prompt: Answer(text)))


def test_a_call_has_the_unix_time_of_its_start() -> None:
    before = time.time()
    call = made("yes", ("yes", -1.0))
    assert call.started_at is not None and before <= call.started_at + call.total_s <= time.time()


@pytest.mark.parametrize(
    ("text", "tokens", "logprob"),
    [
        ("[[yes]]", [("[[", -1.0), ("yes]]", -2.0)], -2.0),  # a token with a part of the answer counts as a whole
        ("Yes it is", [("Yes", -1.0), (" it is", -2.0), ("", -9.0)], -3.0),  # the whole text; no end token
        ("Yes", [("Y", -1.0), ("es", -2.0), ("<|im_end|>", -9.0)], -3.0),  # or a stop text that is shown
        ("[[\u00e9]]", [("[[", -1.0), ("", -2.0), ("\u00e9", -3.0), ("]]", -4.0)], -5.0),  # two tokens
        ("[[]]", [("[[", -1.0), ("]]", -2.0)], None),
        ("[[yes]]", [("[[", -1.0), ("", -2.0)], -3.0),  # not found: all tokens
        ("<think>[[a]]</think>[[a]]", [("<think>[[a]]</think>", -1.0), ("[[", -2.0), ("a]]", -3.0)], -3.0),
        ("[[4]]<think>[[14]]</think>", [("[[4]]", -1.0), ("<think>[[14]]</think>", -2.0)], -1.0),
        ("[[3]]. [[4 2]]", [("[[3]]. [[", -3.0), ("4", -0.5), (" 2", -0.25), ("]]", -6.0), ("", -7.0)], -0.75),
    ],
)
def test_log_probability_of_an_answer_counts_each_token_that_has_a_part_of_it(
    text: str, tokens: list[tuple[str, float]], logprob: float | None
) -> None:
    call = made(text, *tokens)
    assert (call.answer_logprob, call.logprobs) == (logprob, None)
