"""The cost of a sample's calls: the tokens of the extracted answers, and the seconds of Eq. 27."""

import asyncio

import pytest
from support.samples import Recorder, sample, scripted_pair

from lmms_eval_mai.engines.scripted.engine import Answer, ScriptedEngine, ScriptedOptions
from lmms_eval_mai.paper.cascade import cascade
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sample_run import Pair


def test_the_seconds_of_a_cascade_follow_equation_27_with_the_times_of_table_3() -> None:
    """A sample that finishes at agree_think: two short answers, then the small model's thinking."""
    answers = {
        ("small", "short"): Answer("[[Yes]]", prompt_tokens=320, output_tokens=4),
        ("small", "think"): Answer("A cat. [[No]]", prompt_tokens=1088, output_tokens=100),
        ("large", "short"): Answer("[[No]]", prompt_tokens=320, output_tokens=4),
    }
    options = {
        "small": ScriptedOptions(ttft_s="2B", tokens_per_s=61.80, time_scale=0),
        "large": ScriptedOptions(ttft_s="8B", tokens_per_s=47.26, time_scale=0),
    }

    async def run() -> Trace:
        engines = [
            ScriptedEngine(side, lambda prompt: answers[prompt.key.side, prompt.key.stage], one)
            for side, one in options.items()
        ]
        for engine in engines:
            await engine.start()
        return await cascade(sample(), Pair(*engines))

    trace = asyncio.run(run())
    small_s = 0.028005 + 4 / 61.80 + 0.04596 + 100 / 61.80
    assert trace.exit == "agree_think"
    assert sum(call.total_s for call in trace.calls) == pytest.approx(small_s + 0.036495 + 4 / 47.26)


class WithTokenizer(ScriptedEngine):
    """A scripted engine with a tokenizer: a token is a word."""

    def count_tokens(self, text: str) -> int | None:
        return len(text.split())


def test_every_call_has_the_number_of_tokens_of_its_extracted_answer() -> None:
    small = {
        "short": Answer("[[Not sure]]", output_tokens=5),
        "think": Answer("Step one. [[0]] Step two. [[A dog, yes]]", output_tokens=20),
    }
    large = {"short": Answer("Yes", output_tokens=2, answer_tokens=7), "transfer": Answer("[[Yes]]", output_tokens=4)}

    async def run() -> Trace:
        engines = [WithTokenizer(side, lambda prompt, one=one: one[prompt.key.stage])  # type: ignore[misc]
                   for side, one in (("small", small), ("large", large))]  # fmt: skip
        for engine in engines:
            await engine.start()
        return await cascade(sample(), Pair(*engines))

    trace = asyncio.run(run())
    # The number of a record is kept, and the answer of the trace is one of its calls.
    assert [(call.answer_tokens, call.output_tokens) for call in trace.calls] == [(2, 5), (7, 2), (3, 20), (1, 4)]
    assert trace.answer is trace.calls[-1]


def test_an_engine_without_a_tokenizer_leaves_the_tokens_of_the_answer_unknown() -> None:
    async def run() -> Trace:
        return await cascade(sample(), await scripted_pair(Recorder({"short": "Yes"}), Recorder({"short": "Yes"})))

    assert [call.answer_tokens for call in asyncio.run(run()).calls] == [None, None]
