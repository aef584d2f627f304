"""The transformers engine: log-probabilities equal those of a forward pass of the same model, and closing the engine
ends everything that it does."""

import asyncio
import gc
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import Running, make_image, processor_inputs, prompt, started
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedModel

from lmms_eval_mai.contract import AttentionRequest, Call, EngineConfig, Prompt, Sampling, Side
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.errors import EngineNotRunning, EngineStartError
from lmms_eval_mai.run.event_loop import LoopThread

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo"
PROMPTS = [prompt(i, make_image(), "Is it red? " * i, "Think.") for i in range(4)]
"""Of different lengths, so that a batch of them has padding."""
UNTIL_END = Sampling(max_tokens=20)


def engine_of(path: Path, side: Side = "large", **arguments: Any) -> Any:
    own = {"dtype": "float32", "batch_size": 4, **arguments}
    return build(EngineConfig(side, "transformers", str(path), own, attention=not arguments))


@pytest.fixture(scope="module")
def running(loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(DEMO / "small"), loop) as running:
        yield running


# --- log-probabilities ------------------------------------------------------------------------------------------


class Direct:
    """The same checkpoint, used without the engine."""

    def __init__(self) -> None:
        self._processor = AutoProcessor.from_pretrained(DEMO / "small")
        self._model = AutoModelForImageTextToText.from_pretrained(DEMO / "small", dtype="float32").eval()

    def generate(self, asked: Prompt, **decoding: Any) -> tuple[list[str], list[float]]:
        """Return the texts of the tokens of an answer, and their log-probabilities in one forward pass over the prompt
        and the answer (teacher forcing)."""
        inputs = processor_inputs(self._processor, asked)
        given = inputs["input_ids"].shape[1]
        with torch.inference_mode():
            ids = self._model.generate(**inputs, max_new_tokens=20, **decoding)
            more = ids.shape[1] - given
            for name, tensor in inputs.items():  # masks of the prompt, longer by the answer
                if name != "input_ids" and tensor.shape == (1, given):
                    inputs[name] = torch.cat([tensor, tensor[:, -1:].expand(1, more)], dim=1)
            logits = self._model(**{**inputs, "input_ids": ids}).logits
        answer = ids[0, given:]
        values = logits[0, given - 1 : -1].float().log_softmax(-1)[torch.arange(more), answer]
        tokenizer = self._processor.tokenizer
        return [tokenizer.decode([token], skip_special_tokens=True) for token in answer.tolist()], values.tolist()


@pytest.fixture(scope="module")
def direct() -> Direct:
    return Direct()


def assert_same(call: Call, texts: list[str], values: list[float]) -> None:
    assert isinstance(call, Call) and call.logprobs is not None, call
    assert "".join(call.logprobs.texts).startswith(call.text)
    assert call.output_tokens == len(call.logprobs.texts) == len(call.logprobs.values)
    assert list(call.logprobs.texts) == texts[: call.output_tokens]
    assert call.logprobs.values == pytest.approx(values[: call.output_tokens], abs=1e-4)


def test_log_probabilities_of_a_batch_equal_those_of_a_forward_pass_of_each_answer(
    running: Running, direct: Direct
) -> None:
    calls = running.generate(*PROMPTS, sampling=UNTIL_END)
    for asked, call in zip(PROMPTS, calls, strict=True):
        assert_same(call, *direct.generate(asked, do_sample=False))
        assert call.output_tokens > 1 and min(call.logprobs.values) < -1e-3
    ended = [call for call in calls if call.finish_reason == "stop"]
    assert 0 < len(ended) < len(calls)
    assert all(call.logprobs.texts[-1] == "" for call in ended)  # the end-of-sequence token


@pytest.mark.parametrize("name", ["repetition_penalty", "temperature"])
def test_log_probabilities_are_those_before_penalties_and_temperature(
    running: Running, direct: Direct, name: str
) -> None:
    if name == "temperature":
        sampling = replace(UNTIL_END, temperature=2.0, top_p=0.9, min_p=0.01, seed=3)
        decoding: dict[str, Any] = {"do_sample": True, "temperature": 2.0, "top_p": 0.9, "min_p": 0.01, "top_k": 0}
        torch.manual_seed(3)
    else:
        sampling = replace(UNTIL_END, repetition_penalty=8.0)
        decoding = {"do_sample": False, "repetition_penalty": 8.0}
    wanted = direct.generate(PROMPTS[1], **decoding)
    (call,) = running.generate(PROMPTS[1], sampling=sampling)
    assert_same(call, *wanted)
    assert wanted != direct.generate(PROMPTS[1], do_sample=False)


def test_log_probabilities_end_with_the_token_that_completes_a_stop_text(running: Running, direct: Direct) -> None:
    (free,) = running.generate(PROMPTS[1], sampling=UNTIL_END)
    stop = free.text[len(free.text) // 2 :][:3]
    (call,) = running.generate(PROMPTS[1], sampling=replace(UNTIL_END, stop=(stop,)))
    assert call.output_tokens < free.output_tokens and call.finish_reason == "stop"
    assert_same(call, *direct.generate(PROMPTS[1], do_sample=False))


def test_a_call_with_attention_weights_has_the_same_log_probabilities(running: Running) -> None:
    asked = replace(PROMPTS[1], attention=AttentionRequest((1,)))
    plain, weighed = running.generate(PROMPTS[1], asked, sampling=UNTIL_END)
    assert weighed.attention is not None and weighed.logprobs.values == pytest.approx(plain.logprobs.values, abs=1e-4)
    scoring = replace(PROMPTS[1], attention=AttentionRequest((1,), "Think."))
    (scored,) = running.generate(scoring, sampling=Sampling(max_tokens=1))
    assert scored.logprobs is None and scored.output_tokens == 0


def test_drafted_tokens_have_no_log_probabilities(loop: LoopThread) -> None:
    with started(engine_of(DEMO / "large", assistant_model=str(DEMO / "small")), loop) as running:
        (call,) = running.generate(PROMPTS[0], sampling=UNTIL_END)
    assert isinstance(call, Call) and call.target_calls and call.logprobs is None


# --- closing ----------------------------------------------------------------------------------------------------


def test_calls_that_are_prepared_or_answered_while_the_engine_is_closed_raise_engine_crashed() -> None:
    """For each moment between the request and its answer."""
    long = "Is it red? " * 200
    asked = [prompt(i, make_image(size=(480, 320)), long, "Think.") for i in range(6)]
    scored = replace(asked[0], attention=AttentionRequest((1,), "Think."))
    sampling = Sampling(max_tokens=1000, ignore_eos=True)

    async def run(seconds: float) -> list[Any]:
        engine = engine_of(DEMO / "small")
        await engine.start()
        calls = [asyncio.create_task(engine.generate(each, sampling)) for each in asked]
        calls.append(asyncio.create_task(engine.truncate_thinking(asked[0], "Think.", sampling)))
        calls.append(asyncio.create_task(engine.attention_states(scored)))
        await asyncio.sleep(seconds)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    for seconds in (0, 0.01, 0.03, 0.1):
        answers = asyncio.run(run(seconds))
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(errors) >= len(asked)
        assert all(isinstance(error, EngineNotRunning) and "was closed during" in str(error) for error in errors), (
            errors
        )


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_model_that_loads_while_the_engine_is_closed_is_dropped(
    tmp_path: Path, cancelled: bool, is_late: bool
) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(DEMO / "small", path)

    async def run() -> None:
        engine = engine_of(path, "small")
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(0.01)
        if is_late:  # the loop is busy while the model is loaded
            time.sleep(2)  # noqa: ASYNC251
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("mai-small")]
        assert threads
        if cancelled:  # as the start of two engines does if the other engine fails
            start.cancel()
        await engine.close()
        with pytest.raises(asyncio.CancelledError if cancelled else EngineStartError):
            await start
        for thread in threads:  # the model is loaded to its end
            await asyncio.to_thread(thread.join)
        assert not engine.is_up() and loaded(path) == 0
        await engine.start()
        assert engine.is_up() and loaded(path) == 1
        assert isinstance(await engine.generate(PROMPTS[0], UNTIL_END), Call)
        await engine.close()
        assert not engine.is_up()

    asyncio.run(asyncio.wait_for(run(), 60))


def loaded(path: Path) -> int:
    """Return how many models of a checkpoint are in memory."""
    gc.collect()
    models = [found for found in gc.get_objects() if isinstance(found, PreTrainedModel)]
    return sum(model.config.name_or_path == str(path) and model.can_generate() for model in models)
