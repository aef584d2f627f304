"""Calls to one real vLLM engine on a tiny checkpoint: caches, log-probabilities, times and limits."""

import time
from typing import Any

from support.engines import GREEDY, Running, make_image, prompt, question

from lmms_eval_mai.contract import Reply
from lmms_eval_mai.engines.vllm.conversion import sampling_params, to_reply
from lmms_eval_mai.errors import PromptTooLong


def test_second_call_of_a_sample_finds_image_and_question_in_the_prefix_cache(vllm: Running) -> None:
    image, text = make_image("blue", (200, 120)), "How many bars are shown, and what is the largest of them?\n"
    (first,) = vllm.generate(prompt(0, image, text, "Without thinking, answer."))
    (second,) = vllm.generate(prompt(0, image, text, "Please think step by step."))
    (other,) = vllm.generate(prompt(0, make_image("green", (200, 120)), text, "Please think step by step."))
    assert first.cached_tokens == 0 and other.cached_tokens == 0
    assert second.cached_tokens >= 32


async def answer(vllm: Running, rendered: Any) -> Any:
    """Return vLLM's output for a rendered prompt."""
    name = f"test-{time.perf_counter()}"
    return [output async for output in vllm.engine.llm.generate(rendered, sampling_params(GREEDY), name)][-1]


def test_image_is_prepared_and_sent_once(vllm: Running) -> None:
    renderer = vllm.engine.llm.renderer
    image = make_image("teal", (220, 120))
    before = renderer.mm_processor_cache.make_stats()
    sent = []
    for words in ("Without thinking, answer.", "Please think step by step.", "Reference: none."):
        asked = prompt(0, image, words)
        rendered = vllm.loop.run(vllm.engine._render(asked, asked.messages))
        sent.append([item is not None for item in rendered["mm_kwargs"]["image"]])
        vllm.loop.run(answer(vllm, rendered))
    after = renderer.mm_processor_cache.make_stats()
    assert sent == [[True], [False], [False]]
    assert (after.total - before.total, after.hits - before.hits) == (3, 2)


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
    asked = question(2)
    rendered = vllm.loop.run(vllm.engine._render(asked, asked.messages))
    result = vllm.loop.run(answer(vllm, rendered))
    call = to_reply({}, result, requested_at=time.perf_counter() - 1000)
    assert call.ttft_s == result.metrics.first_token_latency < 100 and call.total_s > 1000
