"""Decoding arguments of a request, and requests that are refused before an engine starts."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

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
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "abc"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 2),
        ("top_p", -0.1),
        ("top_k", -5.0),
        ("top_k", 0.5),
        ("repetition_penalty", -1),
        ("repetition_penalty", [1]),
        ("max_new_tokens", -5),
        ("max_new_tokens", 1.5),
        ("seed", "abc"),
    ],
)
def test_decoding_value_that_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        sampling({**TASK, name: value}, "S", "R", None)
    assert str(error.value).startswith(f"The decoding argument {name}={value} is invalid: expected a ")


@pytest.mark.parametrize("value", [None, 0, 0.0, ""])
def test_decoding_value_of_none_or_0_counts_as_not_given(value: Any) -> None:
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty")
    assert sampling({**TASK, **dict.fromkeys(names, value)}, None, "R", None) == sampling({}, None, "R", None)


def test_top_k_of_minus_1_means_no_limit_and_seed_0_is_a_seed() -> None:
    task = sampling({**TASK, "top_k": -1.0, "seed": 0}, None, "R", None)["task"]
    assert (task.top_k, task.seed) == (0, 0)
    assert sampling({**TASK, "seed": 2**62 + 1}, None, "R", None)["task"].seed == 2**62 + 1


def test_decoding_arguments_of_every_task_of_lmms_eval_are_accepted() -> None:
    found = list(shipped_generation_kwargs())
    assert len(found) > 500 and any(given.get("top_p") == 0 for given in found)
    for given in found:
        assert 0 < sampling(given, None, "R", None)["task"].top_p <= 1


def shipped_generation_kwargs() -> Iterator[dict[str, Any]]:
    """Return the decoding arguments in the task files of lmms-eval, whose names end with `.yaml` or `_yaml`."""
    (package,) = importlib.util.find_spec("lmms_eval").submodule_search_locations  # type: ignore[union-attr,misc]
    for path in Path(package, "tasks").rglob("*yaml"):
        text = path.read_text(encoding="utf-8")
        if "generation_kwargs" in text:
            task = yaml.load(text, TaskFileLoader)
            yield task.get("generation_kwargs") or {}
            for given in (task.get("model_specific_generation_kwargs") or {}).values():
                yield given or {}


class TaskFileLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads task files. Python functions and other files that they name are read as None."""


TaskFileLoader.add_multi_constructor("!", lambda loader, suffix, node: None)


@pytest.mark.parametrize(
    ("written", "read"), [("half \ud83d", "half \ufffd"), ("\ud83d\ude00", "\U0001f600"), ("漢字 é", "漢字 é")]
)
def test_lone_surrogates_are_replaced(written: str, read: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": written}]}]
    request = SimpleNamespace(args=("", lambda doc: messages, TASK, 0, "other_task", "test"), metadata={})
    sample = open_sample(request, 0, {"other_task": {"test": [{"question": written}]}}, "R", None)
    assert sample.question[0].content == (read,)
    read.encode()
