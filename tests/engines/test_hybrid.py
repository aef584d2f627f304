"""A model that thinks by itself, of Qwen3.5's architecture, on real vLLM and transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support.engines import engine_of, make_image, prompt, started
from support.loop import LoopThread

from lmms_eval_mai.contract import CallPrompt, Prompt, Reply, Sampling
from lmms_eval_mai.errors import ArgumentError

QUESTION = prompt(0, make_image("red"), "Is there a dog in the image?\n", "Answer the question.")
OFF, ON = "assistant\n<think>\n\n</think>\n\n", "assistant\n<think>\n"


def asked(name: Any) -> Prompt:
    return replace(QUESTION, key=replace(QUESTION.key, prompt=name))


@pytest.mark.long
def test_vllm_switches_the_thinking_on_in_native_calls_only_and_ends_it_at_its_budget(
    cores: None, tiny_hybrid: tuple[Path, Path], loop: LoopThread
) -> None:
    engine = engine_of(
        small=str(tiny_hybrid[0]), think="native", reasoning_parser="qwen3", chat_template_kwargs='{"other": 1}'
    )
    with started(engine, loop) as running:
        for name in get_args(CallPrompt):
            rendered = loop.run(engine._render(asked(name), asked(name).messages))
            shown = engine.tokenizer.decode(rendered["prompt_token_ids"][-16:])
            assert shown.endswith(ON if name == "native" else OFF), name
        sampling = Sampling(40, ignore_eos=True)
        (cut,) = running.generate(asked("native"), sampling=sampling)
        (ended,) = running.generate(asked("native"), sampling=replace(sampling, thinking_token_budget=8))
        (short,) = running.generate(asked("simple"), sampling=sampling)
    assert all(isinstance(call, Reply) for call in (cut, ended, short))
    assert cut.thinking and cut.text == "" and cut.finish_reason == "length"
    assert ended.thinking and ended.text and ended.output_tokens == 40
    assert short.thinking is None and short.text
    assert ended.prompt_tokens == short.prompt_tokens - 4  # the end of an empty thinking


@pytest.mark.slow
def test_transformers_switches_the_thinking_on_in_native_calls_only(
    tiny_hybrid: tuple[Path, Path], loop: LoopThread
) -> None:
    engine = engine_of(small=str(tiny_hybrid[0]), think="native", engine="transformers")
    with started(engine, loop) as running:
        native, short = running.generate(asked("native"), asked("simple"))
    assert native.thinking and native.text == "" and short.thinking is None and short.text
    assert native.prompt_tokens == short.prompt_tokens - 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_model_without_the_switch_is_refused_before_it_starts_and_the_identity_of_one_with_it_tells_that_it_is_used(
    engine: str, tiny_pair: tuple[Path, Path], tiny_hybrid: tuple[Path, Path]
) -> None:
    for given in ({"think": "native"}, {"chat_template_kwargs": '{"enable_thinking": true}'}):
        with pytest.raises(ArgumentError, match="think=native"):
            engine_of(small=str(tiny_pair[0]), engine=engine, **given)
    plain, hybrid = (engine_of(small=str(pair[0]), engine=engine).identity() for pair in (tiny_pair, tiny_hybrid))
    assert "thinking" not in plain and "enable_thinking" in hybrid
