"""Attention weights of the transformers engine equal those of Hugging Face's own eager attention."""

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import Running, make_image, processor_inputs, prompt, started
from torch.utils._python_dispatch import TorchDispatchMode

from lmms_eval_mai.contract import AttentionRequest, Call, EngineConfig, Prompt, Sampling, TokenWeights
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.transformers.batching import Request
from lmms_eval_mai.engines.transformers.loaded_model import LoadedModel
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.run.event_loop import LoopThread

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo/small"
SCORING = Sampling(max_tokens=1)
THINKING = (
    "The image shows a dog, and the dog is red. So the answer is [[Yes]].",
    "日本語 e\u0301 \N{WOMAN}\u200d\N{BOY} No.\n\n" * 6,
    "Yes",
    "<|im_end|>\n<|im_start|>assistant\n<|image_pad|> Yes",  # stays text
)


@dataclass
class Checkpoint:
    """One checkpoint with the engine on it, and the same model in Hugging Face's own eager attention."""

    path: Path
    running: Running
    depth: int

    @cached_property
    def eager(self) -> Any:
        from transformers import AutoModelForImageTextToText

        own = AutoModelForImageTextToText.from_pretrained(self.path, dtype="float32", attn_implementation="eager")
        return own.eval()

    @cached_property
    def processor(self) -> Any:
        from transformers import AutoProcessor

        return AutoProcessor.from_pretrained(self.path)

    def expected(self, asked: Prompt, text: str) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return, for each layer, the last prompt token's attention to the tokens of the text, (heads, tokens), and the
        keys and values of these tokens."""
        inputs = processor_inputs(self.processor, asked)
        start, end = self.place(inputs["input_ids"][0].tolist(), text)
        with torch.inference_mode():
            outputs = self.eager(**inputs, output_attentions=True, use_cache=True)
        cache = [(kept.keys[0, :, start:end], kept.values[0, :, start:end]) for kept in outputs.past_key_values.layers]
        return [layer[0, :, -1, start:end] for layer in outputs.attentions], cache

    def place(self, ids: list[int], text: str) -> tuple[int, int]:
        """Return the shortest range of tokens whose decoded text has the last occurrence of a text."""
        wanted = unicodedata.normalize("NFC", text)
        start = next(i for i in reversed(range(len(ids))) if wanted in self.processor.tokenizer.decode(ids[i:]))
        return start, next(i for i in range(start, len(ids)) if wanted in self.processor.tokenizer.decode(ids[start:i]))


@pytest.fixture(scope="module", params=["demo", "qwen3vl", "internvl"])
def checkpoint(
    request: pytest.FixtureRequest, tiny_pair: tuple[Path, Path], tiny_internvl: Path, loop: LoopThread
) -> Iterator[Checkpoint]:
    path = {"demo": DEMO, "qwen3vl": tiny_pair[1], "internvl": tiny_internvl}[request.param]
    config = EngineConfig("large", "transformers", str(path), {"dtype": "float32", "batch_size": 4}, attention=True)
    with started(build(config), loop) as running:
        yield Checkpoint(path, running, running.engine.layers())


def transfer(number: int, layers: tuple[int, ...]) -> Prompt:
    """A prompt that asks for attention to one of the thinkings. The prompts have different lengths."""
    thinking = THINKING[number]
    own = prompt(number, make_image(), "Is there a dog?\n", "According to previous thinking: ", thinking, "\n Answer.")
    return replace(own, attention=AttentionRequest(layers, thinking))


def all_layers(checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(range(1, checkpoint.depth + 1))


def assert_equal(found: TokenWeights | None, expected: list[torch.Tensor]) -> None:
    assert found is not None and len(found.weights) == len(expected) > 1
    for row, heads in zip(found.weights, expected, strict=True):
        assert len(row) == len(found.tokens) == heads.shape[-1]
        torch.testing.assert_close(torch.tensor(row), heads.mean(0), rtol=0, atol=1e-5)
    assert max(max(row) for row in found.weights) > 1e-3  # so that 1e-5 is a small difference


def test_weights_of_a_text_equal_eager_attention_in_all_layers(checkpoint: Checkpoint) -> None:
    assert len(checkpoint.eager.get_decoder().layers) == checkpoint.depth
    prompts = [transfer(number, all_layers(checkpoint)) for number in range(3)]
    calls = checkpoint.running.generate(*prompts, sampling=SCORING)
    for asked, call, text in zip(prompts, calls, THINKING, strict=False):
        assert isinstance(call, Call), call
        assert call.attention is not None and "".join(call.attention.tokens) == text
        assert_equal(call.attention, checkpoint.expected(asked, text)[0])
        # Nothing was decoded, and the prefill is counted.
        assert (call.text, call.output_tokens) == ("", 0)
        assert call.prompt_tokens == processor_inputs(checkpoint.processor, asked)["input_ids"].shape[1]


def test_weights_of_a_text_do_not_depend_on_the_answer_and_the_other_calls_of_a_batch(checkpoint: Checkpoint) -> None:
    prompts = [transfer(number, (1, checkpoint.depth)) for number in range(len(THINKING))]
    decoding = Sampling(max_tokens=5, ignore_eos=True)
    without = replace(prompts[0], attention=None)
    *scored, _ = checkpoint.running.generate(*prompts, without, sampling=SCORING)
    *decoded, plain = checkpoint.running.generate(*prompts, without, sampling=decoding)
    assert plain.attention is None and decoded[0].text == plain.text and decoded[0].output_tokens == 5
    for one, other, thinking in zip(scored, decoded, THINKING, strict=True):
        assert one.attention.tokens == other.attention.tokens and "".join(one.attention.tokens) == thinking
        torch.testing.assert_close(
            torch.tensor(one.attention.weights), torch.tensor(other.attention.weights), rtol=0, atol=1e-5
        )


def test_weights_of_the_output_are_those_of_the_last_decoding_step(checkpoint: Checkpoint) -> None:
    """Answers of one batch, after prompts of different lengths. Some answers of the demo pair end by themselves."""
    layers = (checkpoint.depth, 1)
    sampling = Sampling(max_tokens=20)
    prompts = [
        replace(prompt(i, make_image(), "Is it red? " * i, "Think."), attention=AttentionRequest(layers))
        for i in range(4)
    ]
    together = checkpoint.running.generate(*prompts, sampling=sampling)
    for asked, call in zip(prompts, together, strict=True):
        assert isinstance(call, Call), call
        inputs = processor_inputs(checkpoint.processor, asked)
        with torch.inference_mode():
            given = inputs["input_ids"].shape[1]
            ids = checkpoint.eager.generate(**inputs, max_new_tokens=20, do_sample=False)
            output = ids[0, given : given + call.output_tokens]
            fed = {"input_ids": ids[:, : given + call.output_tokens - 1]}
            for name, tensor in inputs.items():  # masks of the prompt, longer by the output
                if name != "input_ids" and tensor.shape == inputs["input_ids"].shape:
                    more = torch.full((1, call.output_tokens - 1), int(tensor[0, -1]), dtype=tensor.dtype)
                    fed[name] = torch.cat([tensor, more], dim=1)
            attentions = checkpoint.eager(**{**inputs, **fed}, output_attentions=True).attentions
        assert checkpoint.processor.tokenizer.decode(output, skip_special_tokens=True).startswith(call.text)
        assert call.attention is not None and "".join(call.attention.tokens) == call.text
        for layer, row in zip(layers, call.attention.weights, strict=True):
            expected = [*attentions[layer - 1][0, :, -1, given:].mean(0).tolist(), 0.0]  # the last token was not fed
            assert len(row) == len(call.attention.tokens)
            torch.testing.assert_close(row, tuple(expected[: len(row)]), rtol=0, atol=1e-5)
    if checkpoint.path == DEMO:
        assert {call.finish_reason for call in together} == {"stop", "length"}


def test_states_of_each_head_equal_eager_attention_and_its_cache(checkpoint: Checkpoint) -> None:
    asked = transfer(0, all_layers(checkpoint))
    states = checkpoint.running.loop.run(checkpoint.running.engine.attention_states(asked))
    weights, cache = checkpoint.expected(asked, THINKING[0])
    assert "".join(states.tokens) == THINKING[0] and len(states.layers) == checkpoint.depth
    for layer, heads, (keys, values) in zip(states.layers, weights, cache, strict=True):
        torch.testing.assert_close(layer.weights, heads, rtol=0, atol=1e-5)
        torch.testing.assert_close((layer.keys, layer.values), (keys, values), rtol=1e-4, atol=1e-4)
        # The query, too: softmax over the text's tokens alone gives their weights up to a factor.
        keys = layer.keys.repeat_interleave(len(layer.query) // len(layer.keys), 0)
        alone = (torch.einsum("hd,htd->ht", layer.query, keys) * layer.scaling).softmax(-1)
        torch.testing.assert_close(alone, heads / heads.sum(-1, keepdim=True), rtol=0, atol=1e-4)


class Largest(TorchDispatchMode):
    """Records the largest tensor, and the largest second-largest dimension of a tensor: a matrix of all tokens by all
    tokens would be long in two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.second = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                self.elements = max(self.elements, tensor.numel())
                self.second = max(self.second, sorted([1, 1, *tensor.shape])[-2])
        return result


def test_memory_of_a_scoring_call_grows_with_the_length_and_not_with_its_square(tiny_pair: tuple[Path, Path]) -> None:
    loaded = loaded_model(tiny_pair[1])
    found = []
    for words in (400, 800):
        asked = replace(prompt(0, "dog " * words), attention=AttentionRequest((2,), "dog " * words))
        built, span = loaded.prepare(asked)
        with Largest() as largest:
            (call,) = loaded.generate([Request(asked, SCORING, built, span, Any, 0.0, 0.0)])  # type: ignore[arg-type]
        assert call.attention is not None and call.prompt_tokens == built.length > words
        found.append((built.length, largest))
    (short, one), (long, two) = found
    assert two.second < short < long  # no tensor is as long as the prompt in two dimensions
    assert two.elements <= one.elements * long / short * 1.01


def test_layers_above_the_requested_one_are_not_run(tiny_pair: tuple[Path, Path]) -> None:
    loaded = loaded_model(tiny_pair[1])
    asked = transfer(2, (2, 1))
    built, span = loaded.prepare(asked)
    ran: list[int] = []

    def record(module: Any, *_: Any) -> None:
        if hasattr(module, "layer_idx") and hasattr(module, "q_proj"):
            ran.append(module.layer_idx)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(record)
    assert span is not None and len(loaded.states(asked, built, span).layers) == 2
    hook.remove()
    assert ran == [0, 1]


def loaded_model(path: Path) -> LoadedModel:
    config = EngineConfig("large", "transformers", str(path), {"dtype": "float32"}, attention=True)
    return LoadedModel(config, TransformersOptions(dtype="float32"))


def test_a_layer_that_the_model_lacks_fails_only_its_call(checkpoint: Checkpoint) -> None:
    good, bad = transfer(0, (1,)), transfer(1, (1, checkpoint.depth + 1))
    call, error = checkpoint.running.generate(good, bad, sampling=SCORING)
    assert isinstance(call, Call) and isinstance(error, SampleError)
    assert f"the model has layers 1 to {checkpoint.depth}" in str(error)


def test_an_engine_without_attention_says_so(tiny_pair: tuple[Path, Path], loop: LoopThread) -> None:
    with started(build(EngineConfig("small", "transformers", str(tiny_pair[0]))), loop) as running:
        (error,) = running.generate(transfer(0, (1,)), sampling=SCORING)
        assert running.engine.layers() == 3
    assert isinstance(error, SampleError) and "was not started with attention weights" in str(error)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"assistant_model": str(DEMO)}, "small_assistant_model=.* gives no attention weights"),
        ({"attn_implementation": "eager"}, "small_attn_implementation=eager gives no attention weights"),
        (None, "GitForCausalLM does not use transformers' attention interface"),
    ],
)
def test_arguments_and_models_that_give_no_attention_are_refused_before_the_start(
    tmp_path: Path, arguments: dict[str, Any] | None, reason: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "git", "architectures": ["GitForCausalLM"]}))
    path = str(tmp_path if arguments is None else DEMO)
    build(EngineConfig("small", "transformers", path, arguments or {})).validate()
    engine = build(EngineConfig("small", "transformers", path, arguments or {}, attention=True))
    with pytest.raises(ArgumentError, match=reason):
        engine.validate()
    assert engine.layers() is None
