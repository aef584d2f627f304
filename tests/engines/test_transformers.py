"""The transformers engine on the small demo model in fp32: log-probabilities equal those of a forward pass, a bad call
fails alone, and closing the engine ends everything that it does."""

import asyncio
import gc
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running, make_image, processor_inputs, prompt, started

from lmms_eval_mai.contract import AttentionRequest, Call, EngineConfig, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import ArgumentError, EngineNotRunning, EngineStartError, PromptTooLong
from lmms_eval_mai.run.loop import LoopThread

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo"
PROMPTS = [replace(prompt(i, make_image(), "Is it red? " * i, "Think."), logprobs=True) for i in range(4)]
"""Of different lengths, so that a batch of them has padding."""
UNTIL_END = Sampling(max_tokens=20)


def engine_of(path: Path = DEMO / "small", attention: bool = True, **arguments: Any) -> Any:
    return build(EngineConfig("large", "transformers", str(path), {"dtype": "float32", **arguments}, attention))


@pytest.fixture(scope="module")
def running(loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(batch_size=4), loop) as running:
        yield running


# --- answers and log-probabilities ------------------------------------------------------------------------------


def answer_of(model: Any, processor: Any, asked: Prompt) -> tuple[list[str], list[float]]:
    """Return the texts of the tokens of an answer, and their log-probabilities in one forward pass over the prompt and
    the answer (teacher forcing), without the engine."""
    import torch

    inputs = processor_inputs(processor, asked)
    given = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=20, do_sample=False)
        more = ids.shape[1] - given
        for name, tensor in inputs.items():  # masks of the prompt, longer by the answer
            if name != "input_ids" and tensor.shape == (1, given):
                inputs[name] = torch.cat([tensor, tensor[:, -1:].expand(1, more)], dim=1)
        logits = model(**{**inputs, "input_ids": ids}).logits
    answer = ids[0, given:]
    values = logits[0, given - 1 : -1].float().log_softmax(-1)[torch.arange(more), answer]
    decode = processor.tokenizer.decode
    return [decode([token], skip_special_tokens=True) for token in answer.tolist()], values.tolist()


def test_log_probabilities_of_a_batch_equal_those_of_a_forward_pass_of_each_answer(running: Running) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(DEMO / "small")
    model = AutoModelForImageTextToText.from_pretrained(DEMO / "small", dtype="float32").eval()
    calls = running.generate(*PROMPTS, sampling=UNTIL_END)
    for asked, call in zip(PROMPTS, calls, strict=True):
        texts, values = answer_of(model, processor, asked)
        assert isinstance(call, Call) and call.logprobs is not None, call
        assert "".join(call.logprobs.texts).startswith(call.text)
        assert list(call.logprobs.texts) == texts and call.output_tokens == len(texts) > 1
        assert call.logprobs.values == pytest.approx(values, abs=1e-4) and min(values) < -1e-3
    ended = [call for call in calls if call.finish_reason == "stop"]
    assert 0 < len(ended) < len(calls)
    assert all(call.logprobs.texts[-1] == "" for call in ended)  # the end-of-sequence token
    assert len({round(call.ttft_s - call.queued_s, 6) for call in calls}) == 1  # they began together


# --- one bad call -----------------------------------------------------------------------------------------------


def test_a_call_that_makes_its_batch_fail_fails_alone(running: Running) -> None:
    too_long = prompt(7, make_image(), "red " * 5000)
    first, error, *others = running.generate(PROMPTS[0], replace(too_long, logprobs=True), *PROMPTS[1:3])
    assert isinstance(error, PromptTooLong) and "document 7" in str(error)
    assert [call.key.doc_id for call in (first, *others)] == [0, 1, 2]


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
    assert engine_of().identity() == engine_of(batch_size=1, device="cpu").identity()
    others = [engine_of(max_model_len=512), engine_of(DEMO / "large"), engine_of(dtype="bfloat16")]
    assert len({engine.identity() for engine in (engine_of(), *others)}) == 4


# --- closing ----------------------------------------------------------------------------------------------------


def test_calls_that_wait_or_are_answered_while_the_engine_is_closed_raise_engine_crashed() -> None:
    """For each moment between the request and its answer."""
    long = "Is it red? " * 200
    asked = [prompt(i, make_image(size=(480, 320)), long, "Think.") for i in range(6)]
    scored = replace(asked[0], attention=AttentionRequest(1, "Think."))
    sampling = Sampling(max_tokens=1000, ignore_eos=True)

    async def run(seconds: float) -> list[Any]:
        engine = engine_of()
        await engine.start()
        calls = [asyncio.create_task(engine.generate(each, sampling)) for each in asked]
        calls.append(asyncio.create_task(engine.truncate_thinking(asked[0], "Think.", sampling)))
        calls.append(asyncio.create_task(engine.generate(scored, sampling)))
        await asyncio.sleep(seconds)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    for seconds in (0, 0.01, 0.03, 0.1):
        errors = [answer for answer in asyncio.run(run(seconds)) if isinstance(answer, BaseException)]
        assert len(errors) >= len(asked) and all(isinstance(error, EngineNotRunning) for error in errors), errors


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_model_that_loads_while_the_engine_is_closed_is_dropped(tmp_path: Path, is_cancelled: bool) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(DEMO / "small", path)

    async def run() -> None:
        engine, before = engine_of(path), threading.enumerate()
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
        assert loaded(path) == 1 and isinstance(await engine.generate(PROMPTS[0], UNTIL_END), Call)
        await engine.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def loaded(path: Path) -> int:
    """Return how many models of a checkpoint are in memory."""
    from transformers import PreTrainedModel

    gc.collect()
    models = [found for found in gc.get_objects() if isinstance(found, PreTrainedModel)]
    return sum(model.config.name_or_path == str(path) and model.can_generate() for model in models)
