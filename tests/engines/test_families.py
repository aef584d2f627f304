"""Other families than Qwen3-VL on real vLLM and transformers: a model that thinks by itself, of Qwen3.5's architecture,
and one of InternVL3.5's, which cuts images into tiles."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support.engines import LoopThread, engine_of, make_image, processor_inputs, prompt, started

from lmms_eval_mai.contract import CallPrompt, Prompt, Reply, Sampling
from lmms_eval_mai.errors import ArgumentError

QUESTION = prompt(0, make_image("red"), "Is there a dog in the image?\n", "Answer the question.")


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
        names = get_args(CallPrompt)
        tokens = [call.prompt_tokens for call in running.generate(*map(asked, names), sampling=Sampling(1))]
        off = max(tokens)  # with the end of an empty thinking
        assert tokens == [off - 4 * (name == "native") for name in names]
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


# --- tiles of an image ---

SMALL = (100, 100)
"""One tile. An image that is not square is cut into several tiles, followed by a thumbnail."""
DOG = ("Is there a dog in the image?\n", "Answer the question using a single word.")
PROMPTS = (
    prompt(0, make_image("red", SMALL), *DOG),
    prompt(1, make_image("green", (96, 64)), *DOG),
    prompt(2, make_image("blue", (300, 224)), "What is the value in 2019?", " Yes.", " No.", "\nThink step by step."),
    prompt(3, make_image("orange", (40, 400)), "How many bars are shown?"),
    prompt(4, "Before: ", make_image("black", (224, 112)), "between,", make_image("white", SMALL), " and after."),
    prompt(5, "There is no image. ", "How many bars are shown in the chart?"),
)


def figures(calls: list[Any]) -> list[Any]:
    assert all(isinstance(call, Reply) for call in calls), calls
    return [(call.text, call.finish_reason, call.prompt_tokens, call.image_tokens) for call in calls]


@pytest.mark.long
def test_vllm_and_transformers_give_the_same_answers_and_count_the_tokens_of_all_tiles(
    cores: None, tiny_internvl: Path, loop: LoopThread
) -> None:
    """vLLM divides prompts into steps of 64 tokens. Its KV cache has 13 blocks of 32 tokens, and an empty one: requests
    wait, and they are preempted."""
    from transformers import AutoProcessor

    shared = {"small": str(tiny_internvl), "dtype": "float32"}
    with started(engine_of(**shared, engine="transformers"), loop) as running:
        alone = [figures(running.generate(one))[0] for one in PROMPTS]
        assert figures(running.generate(*PROMPTS)) == alone
    assert len({text for text, *_ in alone}) == len(PROMPTS)
    processor = AutoProcessor.from_pretrained(tiny_internvl)
    for asked, (_, _, tokens, image_tokens) in zip(PROMPTS, alone, strict=True):
        ids = processor_inputs(processor, asked)["input_ids"][0].tolist()
        assert (tokens, image_tokens) == (len(ids), ids.count(processor.image_token_id))
    assert alone[1][2] - alone[0][2] == 6 * 16  # 3 x 2 tiles and a thumbnail, instead of one tile of 16 tokens
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 384}
    with started(engine_of(**shared, engine="vllm", **limits, kv_cache_memory_bytes=14 * 32 * 768), loop) as running:
        assert figures(running.generate(*reversed(PROMPTS))) == alone[::-1]
