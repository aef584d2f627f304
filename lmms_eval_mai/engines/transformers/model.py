"""A loaded model with its processor. All its methods run in one thread, so it answers one call at a time."""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, StopStringCriteria

from lmms_eval_mai.contract import EngineConfig, Image, Prompt, Reply, Sampling, TokenLogprobs, TokenWeights
from lmms_eval_mai.engines.checkpoints import quiet_transformers
from lmms_eval_mai.engines.messages import end_of_thinking, merge_adjacent_text, without_thinking
from lmms_eval_mai.engines.thinking import ThinkingSwitch, with_thinking
from lmms_eval_mai.engines.transformers.attention import ATTENTION_FUNCTION, find_in_prompt, read_attention
from lmms_eval_mai.engines.transformers.generation import (
    Steps,
    cut_at_stop,
    decoding,
    penalties,
    reset_generation_config,
    texts_of_output,
)
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.errors import MaiError, PromptTooLong, SampleError, UnreadableImage
from lmms_eval_mai.redaction import error_text

PROCESS_STATE = threading.Lock()
"""Held while an engine uses what belongs to the whole process: transformers sets PyTorch's default dtype and its own
verbosity while it loads a model, and a seed is that of PyTorch's random numbers."""
Inputs = dict[str, torch.Tensor]
"""Name -> tensor. `input_ids`, `attention_mask` and others have the shape (1, length). The first dimension of the rest
counts image patches or images."""


class LoadedModel:
    def __init__(self, config: EngineConfig, options: TransformersOptions, thinking: ThinkingSwitch) -> None:
        """Load model and processor. Raises transformers' errors."""
        self._config, self._options, self._thinking = config, options, thinking
        source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        path = os.path.expanduser(config.model)
        self._processor = AutoProcessor.from_pretrained(path, **source)
        self.tokenizer = self._processor.tokenizer
        with PROCESS_STATE, quiet_transformers():
            self._model = AutoModelForImageTextToText.from_pretrained(
                path,
                dtype=options.dtype,
                attn_implementation=ATTENTION_FUNCTION if config.attention else options.attn_implementation,
                device_map=device_of(options),
                **source,
            ).eval()
        self._eos_token_ids = reset_generation_config(self._model)
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(options.max_model_len or limit or 1 << 30)
        """Tokens of prompt and answer."""

    def answer(self, prompt: Prompt, sampling: Sampling, steps: Steps) -> Reply:
        """Raises a `SampleError`, or `ArgumentError` if the model cannot think."""
        steps.began_at = time.perf_counter()
        try:
            return self._generate(prompt, sampling, steps) if prompt.attention is None else self._score(prompt, steps)
        except MaiError:
            raise
        except Exception as error:
            reason = error_text(error)
        # Raised here, because transformers' error would keep the tensors of the call in memory.
        raise SampleError(
            f"{prompt.key}: transformers failed on this request to {self._config.model} ({reason}). "
            "If memory is short, give the model a device of its own, or make images smaller."
        )

    def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        rest = self._inputs(replace(prompt, messages=without_thinking(prompt, thinking)))["input_ids"].shape[1]
        return end_of_thinking(prompt, thinking, self.tokenizer, self._context, rest, sampling.max_tokens)

    def _inputs(self, prompt: Prompt, **more: Any) -> Inputs:
        try:
            inputs = build_inputs(self._processor, prompt, self._thinking, **more)
        except MaiError:
            raise
        except Exception as error:
            raise UnreadableImage(
                f"{prompt.key}: image and text could not be prepared for {self._config.model} "
                f"({error_text(error)}). Check the document's image."
            ) from error
        if (length := inputs["input_ids"].shape[1]) >= self._context:
            raise PromptTooLong(
                f"{prompt.key}: the prompt has {length} tokens, and the context of {self._config.model} has "
                f"{self._context}. Raise {self._config.side}_max_model_len if the model can take more.",
                self._context,
                length,
            )
        return inputs

    def _generate(self, prompt: Prompt, sampling: Sampling, steps: Steps) -> Reply:
        inputs = self._inputs(prompt)
        length = inputs["input_ids"].shape[1]
        limit = min(sampling.max_tokens, self._context - length)
        end_tokens = [] if sampling.ignore_eos else self._eos_token_ids
        has_logprobs = prompt.logprobs and self.tokenizer.is_fast
        observers = [steps.see_logits] if has_logprobs else []
        stops = [StopStringCriteria(self.tokenizer, list(sampling.stop))] if sampling.stop else []
        with contextlib.ExitStack() as stack:
            if sampling.seed is not None and sampling.temperature > 0:
                stack.enter_context(PROCESS_STATE)
                torch.manual_seed(sampling.seed)
            stack.enter_context(torch.inference_mode())
            generated = self._model.generate(
                **on_device(inputs, self._model),
                generation_config=decoding(sampling, limit, end_tokens),
                logits_processor=[*observers, *penalties(sampling, length)],
                stopping_criteria=[steps.see_token, *stops],
            )
        tokens, text, reason = self._decoded(generated[0, length:].tolist(), prompt, sampling)
        if reason == "length" and steps.repeats and len(tokens) < limit:  # the order of vLLM
            reason = "repetition"
        logprobs = None
        if has_logprobs:
            logprobs = TokenLogprobs(texts_of_output(tokens, self.tokenizer), tuple(steps.logprobs[: len(tokens)]))
        reply = self._reply(
            inputs, steps, text=text, finish_reason=reason, output_tokens=len(tokens), logprobs=logprobs
        )
        return with_thinking(reply, prompt, self.tokenizer.decode(inputs["input_ids"][0, -8:]))

    def _decoded(self, generated: list[int], prompt: Prompt, sampling: Sampling) -> tuple[list[int], str, str]:
        """Return the tokens of an output, its text, and why it ended."""
        tokens, text, is_cut = cut_at_stop(generated, self.tokenizer, sampling.stop)
        if (prompt.native or self._thinking.has_special_marks) and not is_cut:
            text = self.tokenizer.decode([token for token in tokens if token not in self._eos_token_ids])
        if is_cut or (generated[-1] in self._eos_token_ids and not sampling.ignore_eos):
            return tokens, text, "stop"
        return tokens, text.rstrip("\ufffd"), "length"  # the limit may cut a character in two

    def _score(self, prompt: Prompt, steps: Steps) -> Reply:
        """Return a reply without output: one forward pass, with the attention to a text of the prompt."""
        assert prompt.attention is not None
        inputs = self._inputs(prompt, return_offsets_mapping=True)
        offsets, shown = inputs.pop("offset_mapping")[0].tolist(), shown_text(self._processor, prompt, self._thinking)
        begin, texts = find_in_prompt(offsets, shown, prompt.messages[-1], prompt.attention.text)
        weights = read_attention(self._model, on_device(inputs, self._model), prompt.attention.layer, begin, len(texts))
        attention = TokenWeights(texts, tuple(weights))
        return self._reply(inputs, steps, text="", finish_reason="length", output_tokens=0, attention=attention)

    def _reply(self, inputs: Inputs, steps: Steps, **output: Any) -> Reply:
        """Return a reply with its prompt tokens and its times. `output`: the other fields."""
        image_token_id = getattr(self._processor, "image_token_id", None)
        ids = inputs["input_ids"][0].tolist()
        return Reply(
            prompt_tokens=len(ids),
            cached_tokens=0,
            queued_s=steps.began_at - steps.submitted_at,
            ttft_s=None if steps.first_token_at is None else steps.first_token_at - steps.submitted_at,
            total_s=time.perf_counter() - steps.submitted_at,
            image_tokens=None if image_token_id is None else ids.count(image_token_id),
            **output,
        )


def build_inputs(processor: Any, prompt: Prompt, thinking: ThinkingSwitch, **more: Any) -> Inputs:
    """Return the model inputs of a prompt. `more`: further arguments of the processor. Raises the processor's errors,
    for example for an image that it cannot prepare."""
    images = [part.pixels for message in prompt.messages for part in message.content if isinstance(part, Image)]
    return dict(
        processor(
            text=[shown_text(processor, prompt, thinking)],
            images=[images] if images else None,
            return_tensors="pt",
            add_special_tokens=False,
            **more,
        )
    )


def shown_text(processor: Any, prompt: Prompt, thinking: ThinkingSwitch) -> str:
    """Return a prompt in the form of the model's chat template."""
    chat = [
        {
            "role": message.role,
            "content": [
                {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part}
                for part in merge_adjacent_text(message.content)
            ],
        }
        for message in prompt.messages
    ]
    given = thinking.arguments(prompt)
    return str(processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False, **given))


def on_device(inputs: Mapping[str, torch.Tensor], model: Any) -> Inputs:
    """Return tensors on a model's device. Those of floating-point numbers get the model's type."""
    types = {name: model.dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in inputs.items()}
    return {name: tensor.to(model.device, types[name]) for name, tensor in inputs.items()}
