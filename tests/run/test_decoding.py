"""Decoding arguments of tasks and of `--gen_kwargs`, up to what vLLM gets."""

import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmms_eval_mai.engines.vllm.conversion import sampling_params
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.prompts import MAX_TOKENS
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.decoding import IGNORED, NAMES, ignored_arguments, sampling

TASK = {"max_new_tokens": 4096, "temperature": 0, "top_p": 1.0, "num_beams": 1, "do_sample": False, "until": []}
GREEDY = parse({})
PROMPTS = {"simple", "explain", "think", "native", "stage2", "transfer", "task"}
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
ARGUMENTS: list[dict[str, Any]] = [
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "presence_penalty": 1.5, "repetition_penalty": 1.2, "seed": 0},
    {"min_p": 0.05, "presence_penalty": -2, "frequency_penalty": -0.5, "seed": 7, "n": 1, "max_new_tokens": 32768},
    {"top_p": 0, "top_k": 0},
]


def test_every_decoding_argument_of_lmms_evals_vllm_reaches_vllm_with_the_same_value() -> None:
    assert {name for given in ARGUMENTS for name in given} | {"num_beams", "stop"} == set(NAMES)
    for given in ARGUMENTS:
        theirs = vllm_of_lmms_eval({**TASK, "temperature": 0.5, **given})
        found = sampling({**TASK, "temperature": 0.5, **given}, GREEDY, is_mai_task=True)
        assert set(found) == PROMPTS
        for one in found.values():
            ours = sampling_params(one)
            for field in ("max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", *PENALTIES):
                assert getattr(ours, field) == getattr(theirs, field), field


def vllm_of_lmms_eval(gen_kwargs: dict[str, Any]) -> Any:
    """Return vLLM's `SamplingParams` that lmms-eval's vllm model makes of the arguments. It has no public function for
    them, and a whole model would start an engine."""
    from lmms_eval.models.chat.vllm import VLLM
    from vllm import SamplingParams

    model = VLLM.__new__(VLLM)
    model.max_new_tokens = inspect.signature(VLLM).parameters["max_new_tokens"].default
    return SamplingParams(**model._resolve_sampling_params(gen_kwargs))


def test_stop_is_a_text_or_a_list() -> None:
    texts: dict[Any, tuple[str, ...]] = {"]]": ("]]",), '"a,b"': ("a,b",), "none": (), None: (), ("a", "b"): ("a", "b")}
    texts['["[[","\\n\\n"]'] = ("[[", "\n\n")
    for given, expected in texts.items():
        assert sampling({"stop": given}, GREEDY, is_mai_task=True)["think"].stop == expected


REFUSED = [
    *(("temperature", value) for value in (-1, "abc", float("nan"), 1e39, True)),
    *(("top_p", 2), ("top_k", 2**31), ("top_k", 0.5), ("top_k", -2), ("min_p", 1.5), ("repetition_penalty", [1])),
    *(("presence_penalty", 2.5), ("frequency_penalty", 9), ("max_new_tokens", 1.5), ("n", 2), ("n", 0)),
    *(("num_beams", 4), ("seed", 2**63)),  # servers and vLLM's process take no larger number
    *(("stop", value) for value in (5, "[END]", [""])),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_decoding_value_that_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        sampling({**TASK, name: value}, GREEDY, is_mai_task=True)
    assert str(error.value).startswith(f"The decoding argument {name}={value} is ")


def test_value_that_only_vllm_refuses_is_refused_where_an_engine_is_vllm() -> None:
    own = {"temperature": 2.5}
    with pytest.raises(ArgumentError, match="temperature"):
        sampling(own, GREEDY, is_mai_task=True)
    with pytest.raises(ArgumentError, match="temperature"):
        sampling({}, parse({"think": "native", "native_gen_kwargs": own}), is_mai_task=True)
    other = parse({"small": "http://127.0.0.1/v1", "large": "http://127.0.0.1/v1"})
    assert sampling(own, other, is_mai_task=True)["simple"].temperature == 2.5


@pytest.mark.parametrize("value", [None, 0, 0.0, ""])
def test_decoding_value_of_none_or_0_counts_as_not_given(value: Any) -> None:
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", *PENALTIES)
    given = sampling({**TASK, **dict.fromkeys(names, value)}, GREEDY, is_mai_task=False)
    assert given == sampling({"top_k": -1.0}, GREEDY, is_mai_task=False)  # vLLM: "0 (or -1)" means all tokens


def test_until_is_ignored_for_tasks_that_are_not_ours() -> None:
    assert sampling({**TASK, "until": ["\n\n"]}, GREEDY, is_mai_task=False)["task"].stop == ()
    assert ignored_arguments({**TASK, "until": ["\n\n"]}) == []
    assert ignored_arguments({**TASK, "until": ["Q:"], "visual_cot": True}) == ["until", "visual_cot"]


def test_decoding_arguments_of_every_task_of_lmms_eval_are_accepted() -> None:
    found = list(shipped_generation_kwargs())
    assert len(found) > 500 and any(given.get("top_p") == 0 for given in found)
    for given in found:
        assert 0 < sampling(given, GREEDY, is_mai_task=False)["task"].top_p <= 1
    assert set(IGNORED) <= {name for given in found for name in given}


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


def limits(gen_kwargs: dict[str, Any], is_mai_task: bool, **arguments: Any) -> dict[str, int]:
    return {name: one.max_tokens for name, one in sampling(gen_kwargs, parse(arguments), is_mai_task).items()}


def test_every_call_of_our_tasks_has_the_limit_that_lmms_evals_vllm_gives_the_task() -> None:
    for path in sorted(Path(__file__).parents[2].glob("task_configs/**/*yaml")):
        given = yaml.load(path.read_text(), TaskFileLoader).get("generation_kwargs")
        if given is not None:
            theirs = vllm_of_lmms_eval(given).max_tokens
            assert limits(given, is_mai_task=True) == dict.fromkeys(PROMPTS, theirs), path
    assert theirs == MAX_TOKENS == 4096


def test_a_low_limit_of_another_task_is_that_of_short_answers_and_max_new_tokens_limits_every_call() -> None:
    short = {"simple": 16, "task": 16}
    assert limits({"max_new_tokens": 16}, is_mai_task=False) == dict.fromkeys(PROMPTS, MAX_TOKENS) | short
    assert limits({"max_new_tokens": 32768}, is_mai_task=False) == dict.fromkeys(PROMPTS, 32768)
    assert limits(TASK, is_mai_task=True, max_new_tokens=64) == dict.fromkeys(PROMPTS, 64)


def test_a_model_that_thinks_by_itself_has_decoding_arguments_of_its_own() -> None:
    given = {"think": "native", "native_gen_kwargs": '{"temperature": 0.6, "max_new_tokens": 9000}'}
    found = sampling(
        {**TASK, "top_k": 7, "seed": 3}, parse({**given, "max_thinking_tokens": 500}), is_mai_task=True, repeat=1
    )
    native = found.pop("native")
    assert (native.temperature, native.top_k, native.max_tokens, native.seed) == (0.6, 7, 9000, 4)
    assert native.thinking_token_budget == 500
    for one in found.values():
        assert (one.temperature, one.max_tokens, one.thinking_token_budget) == (0, 4096, None)
