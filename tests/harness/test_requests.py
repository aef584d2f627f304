"""Decoding arguments of a request, and requests that are refused before an engine starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.requests import open_sample, sampling
from lmms_eval_mai.paper.prompts import MAX_TOKENS

TASK = {"max_new_tokens": 1024, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": []}


def test_our_tasks_are_decoded_greedily_with_the_limits_of_their_stages() -> None:
    stages = sampling(TASK, "S", "R", None)
    assert {one.temperature for one in stages.values()} == {0.0}
    limits = {stage: one.max_tokens for stage, one in stages.items() if stage != "task"}
    answer = MAX_TOKENS["answer"]
    assert limits == {"short": 1024, "think": MAX_TOKENS["R"], "stage2": answer, "transfer": answer}


def test_gen_kwargs_apply_to_every_call() -> None:
    given = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "seed": 7}
    for stage in sampling({**TASK, **given}, "R", "R", None).values():
        assert (stage.temperature, stage.top_p, stage.top_k) == (0.7, 0.9, 20)
        assert (stage.repetition_penalty, stage.seed) == (1.1, 7)


def test_limit_of_the_task_applies_to_its_own_prompt_and_max_new_tokens_to_every_call() -> None:
    stages = sampling({**TASK, "max_new_tokens": 16}, "R", "R", None)
    assert (stages["think"].max_tokens, stages["short"].max_tokens) == (16, MAX_TOKENS["S"])
    capped = sampling(TASK, "S", "R", 64)
    assert {one.max_tokens for one in capped.values()} == {64}


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1), ("top_p", 2), ("repetition_penalty", -1), ("max_new_tokens", -5)]
)
def test_invalid_decoding_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name}={value} .* is invalid: it must be"):
        sampling({**TASK, name: value}, "S", "R", None)


@pytest.mark.parametrize(
    ("written", "read"), [("half \ud83d", "half \ufffd"), ("\ud83d\ude00", "\U0001f600"), ("漢字 é", "漢字 é")]
)
def test_lone_surrogates_are_replaced(written: str, read: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": written}]}]
    request = SimpleNamespace(args=("", lambda doc: messages, TASK, 0, "other_task", "test"), metadata={})
    sample = open_sample(request, 0, {"other_task": {"test": [{"question": written}]}}, "R", None)
    assert sample.question[0].content == (read,)
    read.encode()
