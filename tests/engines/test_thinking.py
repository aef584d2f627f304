"""A model's own thinking: the switch in the chat template, and the split of an output."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.endpoints import ScriptedServer, with_servers

from lmms_eval_mai.contract import CallKey, CallPrompt, EngineConfig, Message, Prompt, Reply, Sampling, TokenLogprobs
from lmms_eval_mai.engines.scripted import Answer, ScriptedEngine
from lmms_eval_mai.engines.thinking import ThinkingSwitch, template_of, thought_first, with_thinking
from lmms_eval_mai.errors import ArgumentError, SampleError

HYBRID = "{% if add_generation_prompt %}<a>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
ALWAYS = "{% if add_generation_prompt %}<a><think>{% endif %}"
PLAIN = "{% if add_generation_prompt %}<a>{% endif %}"


def asked(name: CallPrompt = "native") -> Prompt:
    return Prompt((Message("user", ("What is it?",)),), CallKey("t", 0, 0, "small", name))


async def said(output: str, name: CallPrompt = "native", **fields: Any) -> Reply:
    """Return the call of a scripted engine with this output."""
    engine = ScriptedEngine("small", lambda prompt: Answer(output, **fields))
    await engine.start()
    return await engine.generate(asked(name), Sampling(8))


@pytest.mark.parametrize(
    ("output", "finish_reason", "thinking", "text"),
    [
        ("red, so yes</think>\n\n[[Yes]]", "stop", "red, so yes", "[[Yes]]"),
        ("<think>\nred\n</think>[[Yes]]", "stop", "red", "[[Yes]]"),
        ("[[No]]? no</think>[[Yes]]</think>[[No]]", "stop", "[[No]]? no", "[[Yes]]</think>[[No]]"),
        ("</think>\n\n[[Yes]]", "stop", "", "[[Yes]]"),
        ("<think>red and", "stop", "red and", ""),
        ("<|channel>thought\na </think> is a mark<channel|>[[Yes]]", "stop", "a </think> is a mark", "[[Yes]]"),
        ("[[Yes]]", "stop", None, "[[Yes]]"),
        ("red and", "length", "red and", ""),
    ],
)
def test_first_end_mark_of_its_family_ends_a_native_thinking_and_other_calls_keep_their_output(
    output: str, finish_reason: str, thinking: str | None, text: str
) -> None:
    call = asyncio.run(said(output, finish_reason=finish_reason))
    assert (call.thinking, call.text) == (thinking, text)
    for name in ("simple", "think", "transfer"):
        call = asyncio.run(said(output, name, finish_reason=finish_reason))
        assert (call.thinking, call.text) == (None, output)
        thought = name != "think" and thinking is not None and finish_reason == "stop"
        assert thought_first(name, call.text, call.thinking) == thought


def test_marks_around_nothing_are_no_part_of_a_short_answer_and_do_not_count_for_its_probability() -> None:
    for before, after in (("<|channel>", "<channel|>"), ("", "")):  # an engine may give special tokens no text
        texts = (before, "thought", "\n", after, "no", "w")
        whole = Reply("<|channel>thought\n<channel|>now", "stop", 1, 0, 6, None, None, 1.0)
        whole = dataclasses.replace(whole, logprobs=TokenLogprobs(texts, (-5.0, -5.0, -5.0, -5.0, -1.0, -2.0)))
        call = with_thinking(whole, asked("simple"), "assistant\n")
        assert (call.thinking, call.text) == (None, "now")
        assert call.logprobs == TokenLogprobs(("no", "w"), (-1.0, -2.0))


def test_a_model_whose_template_always_opens_a_thinking_keeps_its_texts_whole_as_a_server_has_them() -> None:
    call = asyncio.run(said("red, so yes</think>[[Yes]]", "think"))
    whole = with_thinking(call, asked("think"), "assistant\n<think>\n")
    assert (whole.thinking, whole.text) == (None, "<think>\nred, so yes</think>[[Yes]]")
    short = with_thinking(call, asked("simple"), "assistant\n<think>\n")
    assert thought_first("simple", short.text, short.thinking)


def switch(template: str | None, native: bool = False, **arguments: Any) -> ThinkingSwitch:
    return ThinkingSwitch(EngineConfig("small", "vllm", "m", arguments, native=native), template)


def test_template_gets_the_switch_if_it_knows_it_and_the_arguments_of_the_user() -> None:
    given = {"reasoning_effort": "low"}
    assert switch(HYBRID).arguments(asked("simple")) == {"enable_thinking": False}
    assert switch(HYBRID, chat_template_kwargs=given).arguments(asked()) == {**given, "enable_thinking": True}
    assert switch(None).arguments(asked("think")) == {"enable_thinking": False}  # a server filters what it knows
    assert switch(PLAIN, chat_template_kwargs=given).arguments(asked("simple")) == given
    assert switch(ALWAYS, native=True).arguments(asked()) == {}


def test_model_that_cannot_think_by_itself_is_refused_at_the_start_and_in_a_request() -> None:
    for refused in (lambda: switch(PLAIN, native=True), lambda: switch(PLAIN).arguments(asked())):
        with pytest.raises(ArgumentError, match="think=native needs a model that can"):
            refused()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "a", "chat_template.json": {"chat_template": "b"}}, "a"),
        ({"processor_config.json": {}, "tokenizer_config.json": {"chat_template": "d"}}, "d"),
        ({"tokenizer_config.json": {}}, ""),
    ],
)
def test_template_is_found_in_every_file_that_may_have_it(
    tmp_path: Path, files: Mapping[str, Any], expected: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert template_of(str(tmp_path)) == expected


def test_damaged_file_of_a_template_is_named(tmp_path: Path) -> None:
    (file := tmp_path / "tokenizer_config.json").write_bytes('{"é'.encode()[:-1])
    with pytest.raises(ArgumentError, match=str(file)):
        template_of(str(tmp_path))


def test_server_that_reports_its_context_gets_the_switch_and_others_only_if_it_is_needed() -> None:
    off, on = ({"chat_template_kwargs": {"enable_thinking": value}} for value in (False, True))
    for context, name, arguments, expected in (
        (1000, "simple", {}, off),
        (None, "simple", {}, {}),
        (None, "native", {}, on),
        (None, "simple", {"chat_template_kwargs": {}}, off),
    ):
        server = ScriptedServer(context=context)
        with_servers([server], lambda engine, name=name: engine.generate(asked(name), Sampling(8)), **arguments)
        assert {name: value for name, value in server.seen[0].items() if "template" in name} == expected


def test_the_error_of_a_server_that_refuses_the_switch_tells_what_to_leave_out() -> None:
    server = ScriptedServer(refusal="Unrecognized request argument supplied: chat_template_kwargs")
    server.faults.append((400, {}))
    with pytest.raises(SampleError, match="leave think=native and small_chat_template_kwargs out"):
        with_servers([server], lambda engine: engine.generate(asked(), Sampling(8)), chat_template_kwargs={})


def test_server_that_refuses_the_budget_of_a_thinking_gets_a_limit_of_the_output() -> None:
    server = ScriptedServer(
        context=1000, refusal="thinking_token_budget is set but reasoning_config is not configured."
    )
    server.faults.append((400, {}))
    with_servers([server], lambda engine: engine.generate(asked(), Sampling(100, thinking_token_budget=9)))
    sent = [(body.get("thinking_token_budget"), body["max_tokens"]) for body in server.seen]
    assert sent == [(9, 100), (None, 9)]
