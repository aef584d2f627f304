"""The transformers engine on the demo pair in fp32: what is refused, its identity, closing, and the drafts of an
assistant model. `test_contract.py` compares its answers and log-probabilities with those of vLLM."""

import asyncio
import gc
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import make_image, prompt, question, started
from support.loop import LoopThread

from lmms_eval_mai.contract import EngineConfig, Reply, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import ArgumentError, EngineNotRunning, EngineStartError
from lmms_eval_mai.run import presets

pytestmark = pytest.mark.slow

PAIR = presets.load("demo")


def engine_of(path: str = PAIR["small"], **arguments: Any) -> Any:
    return build(EngineConfig("large", "transformers", path, {"dtype": "float32", **arguments}))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_assistant_tokens": 0, "assistant_model": "x"}, "large_num_assistant_tokens=0"),
        ({"assistant_model": "/nowhere"}, "large_assistant_model=/nowhere"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_the_start(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        engine_of(**arguments)


def test_identity_has_what_changes_an_answer_and_not_what_changes_the_speed() -> None:
    assert engine_of().identity() == engine_of(device="cpu").identity()
    others = [engine_of(max_model_len=512), engine_of(PAIR["large"]), engine_of(dtype="bfloat16")]
    assert len({engine.identity() for engine in (engine_of(), *others)}) == 4


def test_calls_that_wait_or_are_answered_while_the_engine_is_closed_raise_engine_crashed() -> None:
    """For each moment between the request and its answer."""
    asked = [prompt(i, make_image(size=(480, 320)), "Is it red? " * 200, "Think.") for i in range(6)]
    sampling = Sampling(max_tokens=1000, ignore_eos=True)

    async def run(seconds: float) -> list[Any]:
        engine = engine_of()
        await engine.start()
        calls = [asyncio.create_task(engine.generate(each, sampling)) for each in asked]
        calls.append(asyncio.create_task(engine.truncate_thinking(asked[0], "Think.", sampling)))
        await asyncio.sleep(seconds)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    for seconds in (0, 0.01, 0.03, 0.1):
        errors = [answer for answer in asyncio.run(run(seconds)) if isinstance(answer, BaseException)]
        assert len(errors) >= len(asked) and all(isinstance(error, EngineNotRunning) for error in errors), errors


def loaded(path: Path) -> int:
    """Return how many models of a checkpoint are in memory."""
    from transformers import PreTrainedModel

    gc.collect()
    models = [found for found in gc.get_objects() if isinstance(found, PreTrainedModel)]
    return sum(model.config.name_or_path == str(path) and model.can_generate() for model in models)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_model_that_loads_while_the_engine_is_closed_is_dropped(tmp_path: Path, is_cancelled: bool) -> None:
    path = shutil.copytree(PAIR["small"], tmp_path / "checkpoint")

    async def run() -> None:
        engine, before = engine_of(str(path)), threading.enumerate()
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(0.01)
        threads = [thread for thread in threading.enumerate() if thread not in before]
        if is_cancelled:  # as the start of two engines does if the other engine fails
            start.cancel()
        await engine.close()
        with pytest.raises(asyncio.CancelledError if is_cancelled else EngineStartError):
            await start
        for thread in threads:  # the model is loaded to its end
            await asyncio.to_thread(thread.join)
        assert threads and loaded(path) == 0
        await engine.start()
        assert loaded(path) == 1
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), 60))


# --- speculative decoding ---------------------------------------------------------------------------------------

QUESTIONS = 4


def calls_of(loop: LoopThread, **arguments: Any) -> tuple[list[Reply], list[int]]:
    """Return the large model's calls, and how often each of the vision towers ran."""
    runs: dict[Any, int] = {}

    def count(module: Any, *_: Any) -> None:
        if module.__class__.__name__.endswith("VisionModel"):
            runs[module] = runs.get(module, 0) + 1

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    with started(engine_of(PAIR["large"], **arguments), loop) as running:
        calls = running.generate(*map(question, range(QUESTIONS)), sampling=Sampling(max_tokens=60, ignore_eos=True))
    hook.remove()
    assert all(isinstance(call, Reply) for call in calls), calls
    return calls, list(runs.values())


@pytest.mark.long
def test_drafts_change_no_token_their_counts_add_up_and_each_vision_tower_runs_once_a_call(loop: LoopThread) -> None:
    alone, _ = calls_of(loop)
    for assistant_images in (True, False):
        own = {"assistant_model": PAIR["large"], "num_assistant_tokens": 5, "assistant_images": assistant_images}
        calls, runs = calls_of(loop, **own)
        assert runs == [QUESTIONS] * (2 if assistant_images else 1)  # that of the model, and of its assistant
        for call, wanted in zip(calls, alone, strict=True):
            assert (call.text, call.output_tokens) == (wanted.text, wanted.output_tokens)
            assert call.accepted_tokens + call.target_calls == call.output_tokens
            # Without `num_assistant_tokens=5` a draft has up to 20 tokens.
            assert 0 <= call.accepted_tokens <= call.proposed_tokens <= 5 * call.target_calls
            assert call.proposed_tokens > call.target_calls > 1
            assert (wanted.proposed_tokens, wanted.accepted_tokens, wanted.target_calls) == (None, None, None)
        assert sum(call.accepted_tokens for call in calls) > 0
