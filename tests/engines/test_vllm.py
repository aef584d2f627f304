"""Calls to one real vLLM engine on a tiny checkpoint: caches, times and limits. Several replicas of a model: all calls
with an image use the same replica, and its caches."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.engines import GREEDY, LoopThread, Running, engine_of, make_image, prompt, started

from lmms_eval_mai.contract import CallKey, Image, Message, Prompt, Reply
from lmms_eval_mai.engines.messages import replica_of
from lmms_eval_mai.engines.vllm.conversion import sampling_params, to_reply
from lmms_eval_mai.errors import PromptTooLong


def test_second_call_of_a_sample_finds_image_and_question_in_the_prefix_cache_and_prepares_no_image(
    vllm: Running,
) -> None:
    image, text = make_image("blue", (200, 120)), "How many bars are shown, and what is the largest of them?\n"
    prepared = vllm.engine.llm.renderer.mm_processor_cache.make_stats
    before = prepared()
    (first,) = vllm.generate(prompt(0, image, text, "Without thinking, answer."))
    (second,) = vllm.generate(prompt(0, image, text, "Please think step by step."))
    after = prepared()
    (other,) = vllm.generate(prompt(0, make_image("green", (200, 120)), text, "Please think step by step."))
    assert first.cached_tokens == 0 and other.cached_tokens == 0
    assert second.cached_tokens >= 32 and (after.total - before.total, after.hits - before.hits) == (2, 1)


def test_prompt_is_answered_after_a_refused_prompt_with_the_same_image(vllm: Running) -> None:
    """vLLM's frontend prepares the image of the refused prompt and does not send it (vLLM issue #46354)."""
    image = make_image("navy", (640, 480))  # the text fits the context, text and image do not
    words = "yes and no "
    text = words * (4040 // vllm.engine.count_tokens(words))
    (refused,), (call,) = vllm.generate(prompt(0, image, text)), vllm.generate(prompt(1, image, "What is it?"))
    assert isinstance(refused, PromptTooLong) and isinstance(call, Reply)
    assert "document 0" in str(refused) and "4096 tokens" in str(refused) and "small_max_model_len" in str(refused)


def test_time_to_the_first_token_is_vllms_and_not_what_the_event_loop_leaves(vllm: Running) -> None:
    """A loop that is busy after the last token makes the call longer, and its first token no later."""

    async def answer() -> Any:
        return [one async for one in vllm.engine.llm.generate("Is it red?", sampling_params(GREEDY), "test")][-1]

    result = vllm.loop.run(answer())
    call = to_reply({}, result, requested_at=time.perf_counter() - 1000)
    assert call.ttft_s == result.metrics.first_token_latency < 100 and call.total_s > 1000


COLOURS = ("red", "green", "blue", "navy", "teal", "olive", "purple", "maroon", "gray", "black", "white", "orange")


def ask(doc_id: int, *shown: Image, repeat: int = 0, think: bool = False) -> Prompt:
    key = CallKey("pope_s", doc_id, repeat, "small", "think" if think else "simple")
    return Prompt((Message("system", ("Look.",)), Message("user", (*shown, f"Is it {doc_id}?"))), key)


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("has_image", [True, False])
def test_images_and_else_documents_are_distributed_evenly_among_the_replicas(replicas: int, has_image: bool) -> None:
    pixels = make_image().pixels
    found = [replica_of(ask(n, *([Image(pixels, f"{n}")] if has_image else [])), replicas) for n in range(4000)]
    assert max(Counter(found).values()) < 1.15 * 4000 / replicas
    # POPE's answers are yes and no in turns: no replica may get only one of them.
    assert max(Counter(found[::2]).values()) < 1.2 * 2000 / replicas


def test_all_calls_with_the_same_first_image_or_else_document_have_one_replica_in_every_process() -> None:
    first, other = (make_image(colour) for colour in COLOURS[:2])
    assert len({replica_of(ask(n, first, *[other] * (n % 2), think=n > 9), 8) for n in range(20)}) == 1
    assert len({replica_of(ask(1, repeat=n, think=n > 9), 8) for n in range(20)}) == 1
    assert [replica_of(ask(n), 8) for n in range(6)] == [0, 6, 5, 1, 4, 4]  # unlike Python's own hash


@pytest.mark.long
def test_a_replica_finds_the_images_of_its_earlier_calls_in_its_cache(
    tiny_pair: tuple[Path, Path], cores: None, loop: LoopThread
) -> None:
    text = "How many bars are shown, and what is the largest of them?\n"
    images = [make_image(colour, (216, 136)) for colour in COLOURS]
    first, second = ([prompt(0, image, text, words) for image in images] for words in ("Answer.", "Think."))
    with started(engine_of(small=str(tiny_pair[0]), dtype="float32", small_data_parallel_size=2), loop) as running:
        running.generate(*first)
        calls = running.generate(*reversed(second))
    assert all(call.cached_tokens >= 32 for call in calls)
