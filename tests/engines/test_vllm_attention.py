"""vLLM gives attention weights to the calls that ask for them, and to no other ones."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.attention_calls import assert_same_attention, attention_of, kept, scored, thought
from support.engines import Running
from support.samples import Recorder, sample

from lmms_eval_mai.contract import AttentionRequest, Prompt, Sampling
from lmms_eval_mai.engines.scripted.engine import ScriptedEngine
from lmms_eval_mai.engines.vllm import attention
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.cascade import MODES
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.paper.sample_run import Pair, with_stage_text
from lmms_eval_mai.paper.sparse import Sparse, select
from lmms_eval_mai.run.config import parse

LONG = Sampling(max_tokens=40, ignore_eos=True)


def test_answer_that_a_stop_text_ends_has_the_weights_of_the_token_before(vllm: Running) -> None:
    (whole,) = vllm.generate(thought(4), sampling=LONG)
    stop = "".join(attention_of(whole).tokens[28:32])
    (stopped,) = vllm.generate(thought(4), sampling=replace(LONG, stop=(stop,)))
    assert stopped.text == whole.text[: whole.text.index(stop)] and stopped.output_tokens <= 32
    (cut,) = vllm.generate(thought(4), sampling=replace(LONG, max_tokens=stopped.output_tokens))
    found, expected = attention_of(stopped), attention_of(cut)
    assert "".join(found.tokens) == stopped.text
    for row, wanted in zip(found.weights, expected.weights, strict=True):
        assert len(row) == len(found.tokens) and row == pytest.approx(wanted[: len(row)], abs=1e-6)


def test_sparse_transfer_with_the_small_models_attention_sends_the_heaviest_tokens_of_its_thinking(
    vllm: Running,
) -> None:
    large = Recorder({"transfer": "[[Yes]]"})
    sparse = Sparse(delta=0.8, layer=2, source="small")
    one = sample()
    one = replace(one, sampling={stage: LONG for stage in one.sampling})

    async def run() -> Trace:
        scripted = ScriptedEngine("large", large)
        await scripted.start()
        return await MODES["transfer"](one, Pair(vllm.engine, scripted, sparse=sparse, transfer_answer="keep"))

    trace = vllm.loop.run(run())
    thinking, found = trace.calls[0], trace.selection
    asked = Prompt(
        with_stage_text(one, prompts.instruction("R", "word")), thinking.key, AttentionRequest((sparse.layer,))
    )
    weights = attention_of(vllm.generate(asked, sampling=LONG)[0])
    expected = select(weights.tokens, weights.weights[0], sparse)
    assert found is not None and found.share >= 0.8 and 0 < found.kept_tokens < found.scored_tokens == LONG.max_tokens
    assert (found.text, found.positions) == (expected.text, expected.positions) and found.text != thinking.text
    assert [call.key.stage for call in trace.calls] == ["think", "transfer"]
    assert large.prompt_of("transfer").endswith(prompts.transfer("pope", found.text, "word"))


def test_calls_with_and_without_attention_do_not_change_each_other(vllm: Running) -> None:
    prompts = [replace(thought(number), attention=None) for number in range(9)]
    prompts[1::3], prompts[2::3] = [thought(n) for n in range(1, 9, 3)], [scored(n) for n in range(2, 9, 3)]
    vllm.loop.run(vllm.engine.clear_caches())
    plain = vllm.generate(*(replace(one, attention=None) for one in prompts), sampling=LONG)
    for one, call, without in zip(prompts, vllm.generate(*prompts, sampling=LONG), plain, strict=True):
        assert call.text == without.text and call.output_tokens == without.output_tokens
        assert (call.attention is None) == (one.attention is None)
        if one.attention is not None:
            assert_same_attention(call, vllm.generate(one, sampling=LONG)[0])
    assert kept(vllm) == 0


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
    vllm.generate(thought(0), sampling=Sampling(max_tokens=1))
    assert kept(vllm) == 0


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
        own = SimpleNamespace(**{**vars(vllm.engine._started.llm.vllm_config), "compilation_config": compilation})
        refused = attention.refusal(own)
        assert refused is None if chosen != "FULL" else "cudagraph_mode=FULL" in str(refused)
