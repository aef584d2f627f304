"""Shared calls are those that vLLM would make."""

from pathlib import Path

from support.engines import GREEDY, Running, question

from lmms_eval_mai.contract import Call
from lmms_eval_mai.run.store import Store


def test_shared_answers_and_tokens_are_equal_to_those_of_calls_that_are_made(vllm: Running, tmp_path: Path) -> None:
    store = Store(tmp_path / "calls")
    store.models, store.run_name = {"small": "digest"}, "small/pope_r"
    try:
        prompts = [question(doc_id) for doc_id in range(6)]
        for prompt, reply in zip(prompts, vllm.generate(*prompts), strict=True):
            vllm.loop.run(store.add(prompt, GREEDY, Call.of(reply, key=prompt.key)))
        store.run_name = "mai/pope_s"
        shared = [vllm.loop.run(store.find(prompt, GREEDY)) for prompt in prompts]
        vllm.loop.run(vllm.engine.clear_caches())
        for found, own in zip(shared, vllm.generate(*prompts), strict=True):
            assert found is not None and found.shared
            for name in ("text", "finish_reason", "prompt_tokens", "output_tokens"):
                assert getattr(found, name) == getattr(own, name)
    finally:
        store.close()
