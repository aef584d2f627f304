"""Answers are decoded once, and their text is the one that vLLM's own detokenizer gives."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Running, question

from lmms_eval_mai.contract import Sampling
from lmms_eval_mai.engines.vllm.arguments import sampling_params
from lmms_eval_mai.engines.vllm.detokenizer import REPLACEMENT_CHARACTER, Detokenizer

DEMO = Path(__file__).parents[2] / "lmms_eval_mai" / "pairs" / "demo" / "small"
TEXTS = (
    "Yes.",
    " ",
    "\n",
    "3 bars",
    "naïve café",
    "日本語",
    "👩‍👩‍👧",
    "🇩🇪",
    "\ufffd",
    "e\u0301",
    "<|im_end|>",
    "</think>",
    "\u202e",
)
SAMPLING = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Any], str]:
    """Texts and token numbers of an answer, and why it ended. Texts are cut between any two tokens."""
    pieces = draw(st.lists(st.sampled_from(TEXTS) | st.integers(0, 700), max_size=12))
    return [*pieces, draw(st.integers(0, 6))], draw(st.sampled_from(["stop", "length"]))


@settings(deadline=None, max_examples=300)
@given(answer=answers())
def test_text_is_the_text_of_vllms_own_detokenizer(tokenizer: Any, answer: tuple[list[Any], str]) -> None:
    (*pieces, cut), finish_reason = answer
    tokens: list[int] = []
    for piece in pieces:  # numbers from 629 on are no tokens: a model's table of embeddings may be longer
        tokens += [piece] if isinstance(piece, int) else tokenizer(piece)["input_ids"]
    tokens = tokens[: len(tokens) - cut] if cut else tokens
    prompt = tokenizer("<|im_start|>user\nWas ist das? 日本\ufffd<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    output = SimpleNamespace(token_ids=tokens, finish_reason=finish_reason, text="")
    result = SimpleNamespace(outputs=[output], prompt_token_ids=prompt)
    found = Detokenizer(tokenizer).text(result, sampling_params(SAMPLING, detokenize=False))
    assert found == vllms_text(tokenizer, prompt, tokens, finish_reason == "stop")


def vllms_text(tokenizer: Any, prompt: list[int], tokens: list[int], stopped: bool) -> str:
    """Feed tokens to vLLM's detokenizer one at a time, as they arrive."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    request: Any = SimpleNamespace(
        request_id="1", prompt_token_ids=prompt, sampling_params=sampling_params(SAMPLING, detokenize=True)
    )
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    for number, token in enumerate(tokens):
        detokenizer.update([token], stopped and number == len(tokens) - 1)
    return detokenizer.get_next_output_text(True, False)


def test_incomplete_character_at_the_end_is_left_out(tokenizer: Any) -> None:
    tokens = tokenizer("日本")["input_ids"][:-1]
    output = SimpleNamespace(token_ids=tokens, finish_reason="length", text="")
    result = SimpleNamespace(outputs=[output], prompt_token_ids=tokenizer("assistant\n")["input_ids"])
    assert REPLACEMENT_CHARACTER in tokenizer.decode(tokens)
    assert Detokenizer(tokenizer).text(result, sampling_params(SAMPLING, detokenize=False)) == "日"


def test_vllm_decodes_itself_if_the_tokenizer_is_not_byte_level() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"▁yes": 0, "▁no": 1, "?": 2}, unk_token="?"))
    words.decoder = decoders.Metaspace()  # leaves out the space of the first token, so parts differ from the whole
    detokenizer = Detokenizer(PreTrainedTokenizerFast(tokenizer_object=words))
    assert not detokenizer.decodes_at_once
    result = SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0], finish_reason="length", text=" yes")])
    assert detokenizer.text(result, sampling_params(SAMPLING, detokenize=True)) == " yes"


def test_answers_of_a_real_engine_have_the_text_that_vllm_gives_them(vllm: Running) -> None:
    assert vllm.engine._detokenizer.decodes_at_once
    generator = random.Random(0)

    async def both(number: int) -> tuple[str, str]:
        sampling = Sampling(max_tokens=60, temperature=2.0, seed=number, ignore_eos=generator.random() < 0.5)
        prepared = await vllm.engine.prepare(question(number))
        call = await vllm.engine.submit(question(number), prepared, sampling)
        params = sampling_params(sampling, detokenize=True)
        async for output in vllm.engine._started.llm.generate(prepared.engine_input, params, f"own-{number}"):
            result = output
        assert len(result.outputs[0].token_ids) == call.output_tokens
        return call.text, result.outputs[0].text

    async def all_of_them() -> list[tuple[str, str]]:
        return await asyncio.gather(*(both(number) for number in range(24)))

    found = vllm.loop.run(all_of_them())
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert any(REPLACEMENT_CHARACTER in ours for ours, _ in found)  # an untrained model gives invalid bytes
