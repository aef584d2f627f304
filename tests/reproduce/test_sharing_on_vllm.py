"""Shared calls are those that vLLM would make."""

from dataclasses import replace
from pathlib import Path

from support.engines import GREEDY, Running, question

from lmms_eval_mai.reproduce.sharing import SharedCalls, SharingEngine


def test_shared_answers_and_tokens_are_equal_to_those_of_calls_that_are_made(vllm: Running, tmp_path: Path) -> None:
    calls = SharedCalls(tmp_path / "calls.jsonl")
    try:
        sharing = Running(SharingEngine(vllm.engine, calls), vllm.loop)
        prompts = [question(doc_id) for doc_id in range(6)]
        calls.run = "small/pope_r"
        sharing.generate(*prompts)
        calls.run = "cascade/pope_s"
        found = sharing.generate(*prompts)
        vllm.loop.run(vllm.engine.clear_caches())
        made = vllm.generate(*prompts)
        for shared, own in zip(found, made, strict=True):
            assert shared.shared and not own.shared
            for name in ("key", "text", "finish_reason", "prompt_tokens", "output_tokens"):
                assert getattr(shared, name) == getattr(own, name)
        other = sharing.generate(*prompts, sampling=replace(GREEDY, max_tokens=3))
        assert not any(call.shared for call in other)
    finally:
        calls.close()
