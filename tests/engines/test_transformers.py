"""The transformers engine on the demo pair in fp32: its attention weights equal those of Hugging Face's own eager
attention, the tokens that carry a text are found, and it ends. `test_contract.py` compares its answers and
log-probabilities with those of vLLM."""

import asyncio
import copy
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import LoopThread, Running, make_image, processor_inputs, prompt, started
from torch.utils._python_dispatch import TorchDispatchMode

from lmms_eval_mai.contract import AttentionRequest, EngineConfig, Prompt, Reply, Sampling
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.thinking import ThinkingSwitch
from lmms_eval_mai.engines.transformers.attention import find_in_prompt
from lmms_eval_mai.engines.transformers.model import build_inputs, shown_text
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.errors import EngineNotRunning, SampleError

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo/small"
pytestmark = pytest.mark.slow

SCORING = Sampling(max_tokens=1)
THINKING = (
    "The image shows a dog, and the dog is red. So the answer is [[Yes]].",
    "日本語 e\u0301 \N{WOMAN}\u200d\N{BOY} No.\n\n" * 6,
    "Yes",
)


@cache
def processor() -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(DEMO)


@cache
def eager() -> Any:
    """Return the same model in Hugging Face's own eager attention."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(DEMO, dtype="float32", attn_implementation="eager").eval()


def engine_of(path: Path = DEMO, attention: bool = False, **arguments: Any) -> Any:
    config = EngineConfig("large", "transformers", str(path), {"dtype": "float32", **arguments}, attention=attention)
    return build(config)


@pytest.fixture(scope="module")
def running(loop: LoopThread) -> Iterator[Running]:
    with started(engine_of(attention=True), loop) as running:
        yield running


def layers() -> range:
    return range(1, len(eager().get_decoder().layers) + 1)


def expected_weights(asked: Prompt, text: str) -> list[torch.Tensor]:
    """Return, for each layer, the last prompt token's attention to the tokens of the text, (heads, tokens): to the
    shortest range of tokens whose decoded text has its last occurrence."""
    inputs = processor_inputs(processor(), asked)
    ids, decode = inputs["input_ids"][0].tolist(), processor().tokenizer.decode
    wanted = unicodedata.normalize("NFC", text)
    start = next(i for i in reversed(range(len(ids))) if wanted in decode(ids[i:]))
    end = next(i for i in range(start, len(ids)) if wanted in decode(ids[start:i]))
    with torch.inference_mode():
        return [layer[0, :, -1, start:end] for layer in eager()(**inputs, output_attentions=True).attentions]


def transfer(number: int, layer: int) -> Prompt:
    """A prompt that asks for attention to one of the thinkings. The prompts have different lengths."""
    thinking = THINKING[number]
    whole = prompt(
        number, make_image(), "Is there a dog?\n", "According to previous thinking: ", thinking, "\n Answer."
    )
    return replace(whole, attention=AttentionRequest(layer, thinking))


def test_weights_of_a_text_equal_eager_attention_in_all_layers(running: Running) -> None:
    for number, text in enumerate(THINKING):
        prompts = [transfer(number, layer) for layer in layers()]
        expected = expected_weights(prompts[0], text)
        calls = running.generate(*prompts, sampling=SCORING)
        for call, heads in zip(calls, expected, strict=True):
            assert isinstance(call, Reply), call
            assert call.attention is not None and "".join(call.attention.tokens) == text
            weights = torch.tensor(call.attention.weights)
            torch.testing.assert_close(weights, heads.mean(0), rtol=0, atol=1e-5)
            assert weights.max() > 1e-3  # so that 1e-5 is a small difference
            # Nothing was decoded, and the prefill is counted.
            assert (call.text, call.output_tokens) == ("", 0)
            assert call.prompt_tokens == processor_inputs(processor(), prompts[0])["input_ids"].shape[1]


class Largest(TorchDispatchMode):
    """Records the largest second-largest dimension of a tensor: a matrix of all tokens by all tokens would be long in
    two dimensions."""

    second = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                self.second = max(self.second, sorted([1, 1, *tensor.shape])[-2])
        return result


def test_a_scoring_call_makes_no_matrix_of_the_prompts_length_and_runs_no_layer_above_the_requested_one(
    tiny_pair: tuple[Path, Path],
) -> None:
    from lmms_eval_mai.engines.transformers.generation import Steps
    from lmms_eval_mai.engines.transformers.model import LoadedModel

    config = EngineConfig("large", "transformers", str(tiny_pair[1]), attention=True)
    model = LoadedModel(config, TransformersOptions(dtype="float32"), ThinkingSwitch(config, ""))
    ran: set[int] = set()

    def record(module: Any, *_: Any) -> None:
        if hasattr(module, "layer_idx"):
            ran.add(module.layer_idx)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(record)
    text = "dog " * 800
    with Largest() as largest:
        call = model.answer(replace(prompt(0, text), attention=AttentionRequest(2, text)), SCORING, Steps())
    hook.remove()
    assert call.attention is not None and ran == {0, 1} and largest.second < 800 < call.prompt_tokens


def test_a_layer_that_the_model_lacks_or_an_engine_without_attention_fails_only_its_call(
    running: Running, loop: LoopThread
) -> None:
    good, bad = transfer(0, 1), transfer(1, len(layers()) + 1)
    call, error = running.generate(good, bad, sampling=SCORING)
    assert isinstance(call, Reply) and isinstance(error, SampleError)
    with started(build(EngineConfig("small", "transformers", str(DEMO))), loop) as without:
        error, call = without.generate(good, prompt(2, "Look."), sampling=SCORING)
    assert isinstance(call, Reply) and isinstance(error, SampleError)


FRAGMENTS = [
    "The image shows a dog. ",
    "[[Yes]]",
    "日本語",
    "\N{WOMAN}\u200d\N{BOY}",
    "\u00e9",
    "e\u0301",
    "\u1112\u1161\u11ab",
]
FRAGMENTS += ["q\u0307\u0323", "\n\n", "  \t ", " ", "\ufffd", "\N{LATIN SMALL LIGATURE FI}", ">\u0338"]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), min_size=1, max_size=8).map("".join).filter(bool)


def find(asked: Prompt, text: str, used: Any = None) -> tuple[list[int], int, tuple[str, ...]]:
    """Return the tokens of a prompt, the first of them that carries a text, and the parts of the text."""
    used = used or processor()
    switch = ThinkingSwitch(EngineConfig("large", "transformers", "m"), "")
    inputs = build_inputs(used, asked, switch, return_offsets_mapping=True)
    offsets = inputs["offset_mapping"][0].tolist()
    start, parts = find_in_prompt(offsets, shown_text(used, asked, switch), asked.messages[-1], text)
    return inputs["input_ids"][0].tolist(), start, parts


@settings(deadline=None, max_examples=40)
@given(before=texts, text=texts, after=texts)
def test_parts_of_the_tokens_are_the_text_and_all_other_tokens_have_no_part_of_it(
    before: str, text: str, after: str
) -> None:
    ids, start, parts = find(prompt(0, make_image(), "Look: ", before, text, after), text)
    decode = processor().tokenizer.decode
    assert "".join(parts) == text
    if unicodedata.is_normalized("NFC", before + text + after) and "\ufffd" not in text + after:
        assert text in decode(ids[start : start + len(parts)])
        assert not decode(ids[start + 1 :]).endswith(text + after + "<|im_end|>\n<|im_start|>assistant\n")
        assert text not in decode(ids[start : start + len(parts) - 1]).removeprefix(before[-1:])


def test_a_message_that_the_template_trims_is_found_and_one_that_it_changes_is_not() -> None:
    changed = copy.copy(processor())
    template = changed.chat_template
    changed.chat_template = template.replace("part.text", "part.text | trim")
    asked = prompt(0, "\n Look: ", "a dog", ". \n")
    ids, start, parts = find(asked, "a dog", changed)
    assert changed.tokenizer.decode(ids[:start]).endswith("user\nLook:") and "".join(parts) == "a dog"
    changed.chat_template = template.replace("part.text", "part.text | upper")
    for missing in ("a dog", "a cat", ""):
        with pytest.raises(ValueError, match=f"a text of {len(missing)} characters was not found"):
            find(asked, missing, changed)


def test_identity_has_what_changes_an_answer_and_not_what_changes_the_speed() -> None:
    assert engine_of().identity() == engine_of(device="cpu").identity()
    others = [engine_of(max_model_len=512), engine_of(DEMO.with_name("large")), engine_of(dtype="bfloat16")]
    assert len({engine.identity() for engine in (engine_of(), *others)}) == 4


def test_calls_that_wait_or_are_answered_while_the_engine_is_closed_raise_engine_crashed() -> None:
    asked = [prompt(i, make_image(size=(480, 320)), "Is it red? " * 200, "Think.") for i in range(6)]
    sampling = Sampling(max_tokens=1000, ignore_eos=True)

    async def run() -> list[Any]:
        engine = engine_of()
        await engine.start()
        calls = [asyncio.create_task(engine.generate(each, sampling)) for each in asked]
        calls.append(asyncio.create_task(engine.truncate_thinking(asked[0], "Think.", sampling)))
        await asyncio.sleep(0.03)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)

    errors = [answer for answer in asyncio.run(run()) if isinstance(answer, BaseException)]
    assert len(errors) >= len(asked) and all(isinstance(error, EngineNotRunning) for error in errors), errors
