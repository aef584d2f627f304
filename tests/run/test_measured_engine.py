"""The time at which a call started, and the log-probability of its answer."""

import asyncio
import dataclasses
import time

import pytest
from support.samples import sample

from lmms_eval_mai.contract import Call, CallKey, Prompt, Sampling, TokenLogprobs
from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run.journal.call_records import call_of, fields_of
from lmms_eval_mai.run.measured_engine import MeasuredEngine, with_answer_logprob
from lmms_eval_mai.run.trace_record import trace_record

SECONDS = 0.05


def test_a_call_has_the_unix_time_of_its_start() -> None:
    def slow(prompt: Prompt) -> Answer:
        return Answer("[[yes]]", prompt_tokens=1, output_tokens=1, seconds=SECONDS)

    async def ask() -> Call:
        engine = MeasuredEngine(ScriptedEngine("small", slow, ScriptedOptions()))
        await engine.start()
        prompt = Prompt(sample().question, CallKey("pope_s", 0, 0, "small", "short"))
        return await engine.generate(prompt, Sampling(max_tokens=4))

    before = time.time()
    call = asyncio.run(ask())
    after = time.time()
    assert call.started_at is not None and call.total_s >= SECONDS
    assert before - 1e-3 <= call.started_at <= after - call.total_s


def measured(text: str, *tokens: tuple[str, float]) -> Call:
    call = Call(
        CallKey("pope_s", 0, 0, "small", "think"), text, "stop", 1, 0, len(tokens), None, None, 1.0,
        logprobs=TokenLogprobs(tuple(text for text, _ in tokens), tuple(value for _, value in tokens)),
    )  # fmt: skip
    return with_answer_logprob(call)


@pytest.mark.parametrize(
    ("text", "tokens", "logprob", "least"),
    [
        ("[[yes]]", [("[[", -1.0), ("yes]]", -2.0)], -2.0, -2.0),  # a token with a part of the answer counts as a whole
        ("Yes it is", [("Yes", -1.0), (" it is", -2.0), ("", -9.0)], -3.0, -2.0),  # the whole text; no end token
        ("Yes", [("Y", -1.0), ("es", -2.0), ("<|im_end|>", -9.0)], -3.0, -2.0),  # or a stop text that is shown
        ("[[\u00e9]]", [("[[", -1.0), ("", -2.0), ("\u00e9", -3.0), ("]]", -4.0)], -5.0, -3.0),  # two tokens
        ("[[]]", [("[[", -1.0), ("]]", -2.0)], None, None),
        ("[[yes]]", [("[[", -1.0), ("?", -2.0)], -3.0, -2.0),  # not found: all tokens
        ("<think>[[a]]</think>[[a]]", [("<think>[[a]]</think>", -1.0), ("[[", -2.0), ("a]]", -3.0)], -3.0, -3.0),
        ("[[4]]<think>[[14]]</think>", [("[[4]]", -1.0), ("<think>[[14]]</think>", -2.0)], -1.0, -1.0),
        ("[[3]]. [[4 2]]", [("[[3]]. [[", -3.0), ("4", -0.5), (" 2", -0.25), ("]]", -6.0), ("", -7.0)], -0.75, -0.5),
    ],
)
def test_log_probability_of_an_answer_counts_each_token_that_has_a_part_of_it(
    text: str, tokens: list[tuple[str, float]], logprob: float | None, least: float | None
) -> None:
    call = measured(text, *tokens)
    assert (call.answer_logprob, call.min_logprob, call.logprobs) == (logprob, least, None)


def test_trace_and_journal_keep_the_two_figures_and_not_those_of_all_tokens() -> None:
    call = measured("[[yes]]", ("[[", -1.0), ("yes", -0.123456789), ("]]", -1.0))
    trace = Trace("agree_short", call, (call,), (), True)
    (record,) = trace_record(trace)["calls"]
    assert (record["answer_logprob"], record["min_logprob"]) == (-0.123457, -0.123457) and "logprobs" not in record
    assert call_of(call.key, fields_of(call)) == call and "logprobs" not in fields_of(call)
    unknown = dataclasses.replace(call, answer_logprob=None, min_logprob=None)
    (record,) = trace_record(dataclasses.replace(trace, calls=(unknown,)))["calls"]
    assert not {"answer_logprob", "min_logprob"} & record.keys()
