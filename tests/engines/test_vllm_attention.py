"""vLLM's attention weights equal those of Hugging Face's eager attention, however vLLM divides and stores the work."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.engines import Running, make_image, prompt

from lmms_eval_mai.engines.base import AttentionRequest, Call, Image, Prompt, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm import attention
from lmms_eval_mai.engines.vllm.attention_worker import ARGUMENT
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.internals import call_workers
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.event_loop import LoopThread

LAYERS = (3, 1, 2)
SCORING = Sampling(max_tokens=1)
LONG = Sampling(max_tokens=40, ignore_eos=True)
THINKING = (
    "The image shows a red bar. So the answer is [[Yes]].",
    "日本語 e\u0301 No.\n\n" * 6,
    "First look at the bars, then at the numbers below. " * 4,
)


def scored(number: int, thinking: str | None = None) -> Prompt:
    """A prompt that asks for the attention to a thinking. Prompts with different numbers share no prefix."""
    thinking = thinking or THINKING[number % len(THINKING)]
    image = make_image(("red", "green", "blue", "navy")[number % 4], (96 + 8 * number, 64))
    own = prompt(number, image, "Is there a bar?\n", f"Reference: {thinking}\nAnswer.")
    return replace(own, attention=AttentionRequest(LAYERS, thinking))


def thought(number: int, thinking: str | None = None) -> Prompt:
    """A prompt that asks for the attention to its own output."""
    return replace(scored(number, thinking), attention=AttentionRequest(LAYERS))


@dataclass
class Eager:
    """The tiny checkpoint in Hugging Face's own eager attention."""

    model: Any
    processor: Any

    def rows(self, asked: Prompt) -> list[list[float]]:
        """Return the attention of the last prompt token to all prompt tokens, in each layer."""
        return self._last_rows(self._inputs(asked))

    def output_rows(self, asked: Prompt, tokens: int) -> tuple[str, list[list[float]]]:
        """Return a greedy answer, and the attention of its last fed token to all its fed tokens, in each layer."""
        import torch

        inputs = self._inputs(asked)
        given = inputs["input_ids"].shape[1]
        ids = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        added = ids[:, given:-1]
        for name, more in (("input_ids", added), ("attention_mask", added * 0 + 1), ("mm_token_type_ids", added * 0)):
            inputs[name] = torch.cat([inputs[name], more], 1)
        text = self.processor.tokenizer.decode(ids[0, given:], skip_special_tokens=True)
        return text, [row[given:] for row in self._last_rows(inputs)]

    def _inputs(self, asked: Prompt) -> dict[str, Any]:
        content = [
            {"type": "image", "image": part.pixels} if isinstance(part, Image) else {"type": "text", "text": part}
            for part in asked.messages[0].content
        ]
        chat = [{"role": "user", "content": content}]
        return dict(
            self.processor.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
            )
        )

    def _last_rows(self, inputs: dict[str, Any]) -> list[list[float]]:
        import torch

        with torch.inference_mode():
            layers = self.model(**inputs, output_attentions=True).attentions
        return [layers[number - 1][0, :, -1].mean(0).tolist() for number in LAYERS]


@pytest.fixture(scope="module")
def eager(vllm: Running, tiny_pair: tuple[Path, Path]) -> Eager:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    path = tiny_pair[0]
    model = AutoModelForImageTextToText.from_pretrained(path, dtype="float32", attn_implementation="eager")
    return Eager(model.eval(), AutoProcessor.from_pretrained(path))


@pytest.fixture(scope="module")
def crowded(vllm: Running, tiny_pair: tuple[Path, Path], loop: LoopThread) -> Iterator[Running]:
    """vLLM with steps of 64 tokens, and a KV cache of 13 blocks of 32 tokens and an empty one. Three prompts of 100
    tokens fit the cache, but not with answers of 40 tokens."""
    limits = {"max_model_len": 352, "kv_cache_memory_bytes": 448 * 768, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    config = parse({"mode": "small", "small": str(tiny_pair[0]), "engine": "vllm", "dtype": "float32", **limits})
    engine = build(replace(config.small, attention=True))
    engine.validate()
    loop.run(engine.start())
    yield Running(engine, loop)
    loop.run(engine.close())


def kept(running: Running) -> int:
    """Return the number of requests of which the worker keeps something."""
    ((count,),) = running.loop.run(call_workers(running.engine._llm, "mai_attention_kept"))
    return int(count)


def assert_weights(call: Call, expected: list[list[float]]) -> None:
    assert isinstance(call, Call), call
    assert call.attention is not None and len(call.attention.weights) == len(LAYERS)
    for row, wanted in zip(call.attention.weights, expected, strict=True):
        assert len(row) == len(call.attention.tokens)
        assert row == pytest.approx(wanted, abs=1e-5)


def assert_same(call: Call, other: Call) -> None:
    assert call.text == other.text
    assert call.attention is not None and other.attention is not None
    assert call.attention.tokens == other.attention.tokens
    assert_weights(call, [list(row) for row in other.attention.weights])


def test_weights_of_a_text_equal_eager_attention_also_if_the_prompt_is_cached(vllm: Running, eager: Eager) -> None:
    assert vllm.engine.layers() == len(LAYERS)
    for number, thinking in enumerate(THINKING):
        asked = scored(number)
        (first,), (again,) = (vllm.generate(asked, sampling=SCORING) for _ in range(2))
        assert first.attention is not None and "".join(first.attention.tokens) == thinking
        assert again.cached_tokens >= 64
        expected = eager.rows(asked)
        rendered = vllm.loop.run(vllm.engine._renderer.render(asked.messages))["prompt_token_ids"]
        span = vllm.engine._attention._tokens.find_in_prompt(rendered, asked, thinking)
        for call in (first, again):
            assert_weights(call, [row[span.start : span.end] for row in expected])
        assert max(map(max, first.attention.weights)) > 1e-3  # so that 1e-5 is a small difference


def test_weights_of_the_output_are_those_of_its_last_fed_token(vllm: Running, eager: Eager) -> None:
    calls = vllm.generate(*map(thought, range(2)), sampling=Sampling(max_tokens=20))
    for number, call in enumerate(calls):
        text, expected = eager.output_rows(thought(number), 20)
        assert call.text == text and call.attention is not None and "".join(call.attention.tokens) == text
        shown = len(call.attention.tokens)
        assert_weights(call, [[*row, 0.0][:shown] for row in expected])  # the last token was not fed


def test_answer_that_a_stop_text_ends_has_the_weights_of_the_token_before(vllm: Running) -> None:
    (whole,) = vllm.generate(thought(4), sampling=LONG)
    assert whole.attention is not None
    tokens = whole.attention.tokens
    stop = "".join(tokens[28:32])
    (stopped,) = vllm.generate(thought(4), sampling=replace(LONG, stop=(stop,)))
    assert stopped.text == whole.text[: whole.text.index(stop)] and stopped.output_tokens <= 32
    (cut,) = vllm.generate(thought(4), sampling=replace(LONG, max_tokens=stopped.output_tokens))
    assert cut.attention is not None and stopped.attention is not None
    shown = len(stopped.attention.tokens)
    assert "".join(stopped.attention.tokens) == stopped.text
    assert_weights(stopped, [list(row[:shown]) for row in cut.attention.weights])


def test_calls_with_and_without_attention_do_not_change_each_other(vllm: Running) -> None:
    prompts = [replace(thought(number), attention=None) for number in range(9)]
    prompts[1::3], prompts[2::3] = [thought(n) for n in range(1, 9, 3)], [scored(n) for n in range(2, 9, 3)]
    vllm.loop.run(vllm.engine.clear_caches())
    plain = vllm.generate(*(replace(one, attention=None) for one in prompts), sampling=LONG)
    for one, call, without in zip(prompts, vllm.generate(*prompts, sampling=LONG), plain, strict=True):
        assert call.text == without.text and call.output_tokens == without.output_tokens
        assert (call.attention is None) == (one.attention is None)
        if one.attention is not None:
            assert_same(call, vllm.generate(one, sampling=LONG)[0])
    assert kept(vllm) == 0


def test_weights_are_the_same_if_prompts_are_divided_and_requests_are_preempted(
    vllm: Running, crowded: Running
) -> None:
    prompts = [kind(number, THINKING[0]) for number, kind in enumerate((scored, thought, thought))]
    before = preemptions()
    together = crowded.generate(*prompts, sampling=LONG)
    assert preemptions() > before
    for call, alone in zip(together, vllm.generate(*prompts, sampling=LONG), strict=True):
        assert_same(call, alone)
    assert kept(crowded) == 0


def preemptions() -> float:
    from prometheus_client import REGISTRY

    return sum(
        sample.value
        for metric in REGISTRY.collect()
        if metric.name == "vllm:num_preemptions"
        for sample in metric.samples
    )


def test_cancelled_calls_leave_nothing_in_the_worker(vllm: Running) -> None:
    async def cancel() -> None:
        for moment in range(8):  # while the prompt is sent, and while the model answers
            asked = (thought, scored)[moment % 2](moment)
            call = asyncio.ensure_future(vllm.engine.generate(asked, replace(LONG, max_tokens=2000)))
            await asyncio.sleep(moment / 50)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    vllm.loop.run(cancel())
    assert kept(vllm) > 0  # until the next call
    vllm.generate(thought(0), sampling=SCORING)
    assert kept(vllm) == 0


def test_rows_that_nobody_takes_are_bounded(crowded: Running) -> None:
    llm = crowded.engine._llm
    limit = 2 * llm.vllm_config.scheduler_config.max_num_seqs
    names = [f"lost-{number}" for number in range(limit + 3)]

    async def not_taken() -> None:
        from vllm.sampling_params import SamplingParams

        for name in names:
            asked = {ARGUMENT: {"key": name, "layers": [1], "span": None}}
            params = SamplingParams(max_tokens=1, extra_args=asked)
            async for _ in llm.generate({"prompt_token_ids": [5, 6, 7]}, params, name):
                pass

    crowded.loop.run(not_taken())
    assert limit <= kept(crowded) <= limit + 1
    crowded.loop.run(call_workers(llm, "mai_attention_take", names[-1], None, names))
    assert kept(crowded) == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8 stores quantized keys"),
        ({"worker_extension_cls": "some.Extension"}, "small_worker_extension_cls is given"),
    ],
)
def test_arguments_that_exclude_attention_are_refused_before_the_start(
    tiny_pair: tuple[Path, Path], vllm: Running, arguments: dict[str, Any], reason: str
) -> None:
    given = {f"small_{name}": value for name, value in arguments.items()}
    config = parse({"mode": "small", "small": str(tiny_pair[0]), "engine": "vllm", **given}).small
    with pytest.raises(ArgumentError, match=reason):
        configure(replace(config, attention=True), None)


def test_attention_is_kept_out_of_cuda_graphs(vllm: Running) -> None:
    from vllm.config import CompilationConfig, CUDAGraphMode

    for given, chosen in ((None, "PIECEWISE"), ("FULL", "FULL"), ("NONE", "NONE")):
        compilation = CompilationConfig(cudagraph_mode=None if given is None else CUDAGraphMode[given])
        arguments = SimpleNamespace(compilation_config=compilation)
        attention.prepare(arguments, vllm.engine._config)
        assert arguments.compilation_config.cudagraph_mode == CUDAGraphMode[chosen]
        own = SimpleNamespace(**{**vars(vllm.engine._llm.vllm_config), "compilation_config": compilation})
        refused = attention.refusal(own)
        assert refused is None if chosen != "FULL" else "cudagraph_mode=FULL" in str(refused)
