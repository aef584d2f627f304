"""Requests of lmms-eval that become samples."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.logs import logged
from support.pope_scripts import pope_scripts
from support.tasks import Loaded

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.run.config import parse


@pytest.mark.parametrize(
    ("written", "read"), [("half \ud83d", "half \ufffd"), ("\ud83d\ude00", "\U0001f600"), ("漢字 é", "漢字 é")]
)
def test_lone_surrogates_are_replaced(written: str, read: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": written}]}]
    request = SimpleNamespace(args=("", lambda doc: messages, {}, 0, "other_task", "test"), metadata={})
    sample = open_sample(request, 0, {"other_task": {"test": [{"question": written}]}}, parse({}))
    assert sample.own_prompt[0].content == (read,)
    read.encode()


def test_an_unknown_decoding_argument_is_refused_before_an_engine_starts(evaluate: Any, write_script: Any) -> None:
    scripts = pope_scripts(write_script, "pope_s")
    with logged() as messages, pytest.raises(ArgumentError, match=r"min_q is unknown\. Did you mean min_p"):
        evaluate(["pope_s"], {"limit": 1, "gen_kwargs": "min_q=0.1"}, **scripts)
    assert not any("starting" in message for message in messages)


@pytest.mark.parametrize("task", ["pope_s", "pope"])
def test_gen_kwargs_may_repeat_official_decoding_and_not_replace_it_and_ignored_ones_are_named_in_a_warning(
    task: str, evaluate: Any, write_script: Any
) -> None:
    scripts = pope_scripts(write_script, task)
    official = {"decoding": "official", "official_decoding": '{"temperature":0.7}'}
    with pytest.raises(ArgumentError, match=r"sets temperature=0\.7, and --gen_kwargs sets temperature=0\."):
        evaluate([task], {"limit": 1, "gen_kwargs": "temperature=0"}, **scripts, **official)
    with logged() as messages:
        evaluate([task], {"limit": 2, "gen_kwargs": "temperature=0.7,seed=5,visual_cot=True"}, **scripts, **official)
    warning = f"{task}: mai_cascade ignores visual_cot, as lmms-eval's vllm model does."
    assert [message for message in messages if "mai_cascade ignores" in message] == [warning]


def test_repeats_of_a_sample_have_different_seeds(tasks: Loaded) -> None:
    task = tasks.chat["pope_s"]
    context, messages, given, *rest = task.instances[0].args
    request = SimpleNamespace(
        args=(context, messages, {**given, "seed": 7}, *rest), metadata=task.instances[0].metadata
    )
    documents = {"pope_s": {"test": task.test_docs()}}
    seeds = [open_sample(request, repeat, documents, parse({})).sampling["short"].seed for repeat in range(3)]
    assert seeds == [7, 8, 9]
