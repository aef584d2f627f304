"""The InternVL3.5 family, which cuts images into tiles: vLLM and transformers give the same answers on a tiny model."""

from pathlib import Path
from typing import Any

import pytest
from support.engines import engine_of, make_image, processor_inputs, prompt, started
from support.loop import LoopThread

from lmms_eval_mai.contract import Reply

pytestmark = pytest.mark.long

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
