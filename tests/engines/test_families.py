"""Other families than Qwen3-VL on real vLLM and transformers: a model that thinks by itself, of Qwen3.5's architecture,
and one of InternVL3.5's, which cuts images into tiles."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import LoopThread, engine_of, make_image, prompt, started

from lmms_eval_mai.contract import Prompt, Sampling
from lmms_eval_mai.errors import ArgumentError

QUESTION = prompt(0, make_image("red"), "Is there a dog in the image?\n", "Answer the question.")


def asked(name: Any) -> Prompt:
    return replace(QUESTION, key=replace(QUESTION.key, prompt=name))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.long)])
def test_the_thinking_is_switched_on_in_native_calls_only_and_vllm_ends_it_at_its_budget(
    engine: str, tiny_hybrid: tuple[Path, Path], loop: LoopThread, request: pytest.FixtureRequest
) -> None:
    given, sampling = {}, Sampling(40, ignore_eos=True)
    if engine == "vllm":
        request.getfixturevalue("cores")
        given["reasoning_parser"] = "qwen3"
    with started(engine_of(small=str(tiny_hybrid[0]), think="native", engine=engine, **given), loop) as running:
        native, short = running.generate(asked("native"), asked("simple"), sampling=sampling)
        (limited,) = running.generate(asked("native"), sampling=replace(sampling, thinking_token_budget=8))
    assert native.thinking and native.text == "" and short.thinking is None and short.text
    assert native.prompt_tokens == short.prompt_tokens - 4  # the end of an empty thinking
    if engine == "vllm":
        assert limited.thinking and limited.text and limited.output_tokens == 40


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


@pytest.mark.long
def test_vllm_and_transformers_give_the_same_answers_and_count_the_tokens_of_all_tiles(
    cores: None, tiny_internvl: Path, loop: LoopThread
) -> None:
    tile, red, blue = make_image("red", (100, 100)), make_image("red", (96, 64)), make_image("blue", (224, 112))
    contents = [(tile, "Is it red?"), (red, "Is it red?"), ("Between ", blue, "and", tile, "."), ("No image.",)]
    found = []
    for engine in ("transformers", "vllm"):
        with started(engine_of(small=str(tiny_internvl), dtype="float32", engine=engine), loop) as running:
            calls = running.generate(*(prompt(number, *content) for number, content in enumerate(contents)))
        found.append([(call.text, call.prompt_tokens, call.image_tokens) for call in calls])
    assert found[0] == found[1] and len({text for text, *_ in found[0]}) == len(contents)
    assert found[0][1][1] - found[0][0][1] == 6 * 16  # 3 x 2 tiles and a thumbnail, instead of one tile of 16 tokens
