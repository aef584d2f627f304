"""The InternVL3.5 family, which cuts images into tiles: vLLM and transformers give the same answers on a tiny model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_cores import fork_cores
from support.engines import Running, engine_of, make_image, prompt, started

from lmms_eval_mai.contract import Call, Prompt
from lmms_eval_mai.run.loop import LoopThread

pytestmark = pytest.mark.long

FIGURES = ("text", "finish_reason", "prompt_tokens", "image_tokens", "output_tokens")

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


@pytest.fixture(scope="module")
def internvl_vllm(tiny_internvl: Path, loop: LoopThread) -> Iterator[Running]:
    """Divides prompts into steps of 64 tokens. Its KV cache has 13 blocks of 32 tokens, and an empty one. All prompts
    at once do not fit it, so requests wait, and they are preempted."""
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 384}
    cache = {"kv_cache_memory_bytes": 14 * 32 * 768}
    fork_cores()
    engine = engine_of(small=str(tiny_internvl), engine="vllm", dtype="float32", **limits, **cache)
    with started(engine, loop) as running:
        yield running


@pytest.fixture(scope="module")
def internvl_transformers(tiny_internvl: Path, loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(small=str(tiny_internvl), engine="transformers", dtype="float32"), loop) as running:
        yield running


def _figures(running: Running, *prompts: Prompt) -> list[list[Any]]:
    calls = running.generate(*prompts)
    for call in calls:
        assert isinstance(call, Call), call
    return [[getattr(call, name) for name in FIGURES] for call in calls]


@pytest.fixture(scope="module")
def alone(internvl_transformers: Running) -> list[list[Any]]:
    """The answers of transformers, one call at a time. They depend on image and text."""
    found = [figures for one in PROMPTS for figures in _figures(internvl_transformers, one)]
    assert len({text for text, *_ in found}) == len(PROMPTS)
    images = [make_image(colour, SMALL) for colour in ("red", "green", "blue")]
    coloured = _figures(internvl_transformers, *(prompt(6, image, "What is the value in 2019?") for image in images))
    assert len({text for text, *_ in coloured}) > 1
    return found


def test_prompt_tokens_count_all_tiles_of_an_image(tiny_internvl: Path, alone: list[list[Any]]) -> None:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny_internvl)
    assert alone[1][2] - alone[0][2] == 6 * 16  # 3 x 2 tiles and a thumbnail, instead of one tile of 16 tokens
    for given, (_, _, tokens, image_tokens, _) in zip(PROMPTS, alone, strict=True):
        (message,) = given.messages
        content = [
            {"type": "text", "text": block} if isinstance(block, str) else {"type": "image", "image": block.pixels}
            for block in message.content
        ]
        found = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True
        )
        ids = list(found["input_ids"][0])
        assert (tokens, image_tokens) == (len(ids), ids.count(processor.image_token_id))


@pytest.mark.parametrize("name", ["internvl_vllm", "internvl_transformers"])
def test_vllm_and_transformers_give_the_same_answers_to_single_and_concurrent_calls(
    request: pytest.FixtureRequest, alone: list[list[Any]], name: str
) -> None:
    running = request.getfixturevalue(name)
    assert _figures(running, PROMPTS[0]) == alone[:1]
    assert _figures(running, *reversed(PROMPTS)) == alone[::-1]
