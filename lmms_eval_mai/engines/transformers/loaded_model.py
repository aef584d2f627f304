"""A loaded model with its processor. It answers batches in one thread, and prepares prompts in another one."""

import contextlib
import os
import time
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from lmms_eval_mai.contract import Call, EngineConfig, Prompt, Sampling, TokenWeights
from lmms_eval_mai.engines.logs import quiet_transformers
from lmms_eval_mai.engines.messages import space_for_thinking, without_thinking
from lmms_eval_mai.engines.transformers.attention import AttentionReader, AttentionStates, register
from lmms_eval_mai.engines.transformers.batching import Request, to_call
from lmms_eval_mai.engines.transformers.generation import (
    LogprobRecorder,
    StopAtTexts,
    StopWhenCancelled,
    assisted_call,
    generation_config,
    hide_assisted_decoding_warnings,
    penalties,
    reset_generation_config,
    with_draft_counts,
)
from lmms_eval_mai.engines.transformers.inputs import InputBuilder, ModelInput, batch_of, on_device
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.engines.transformers.token_texts import TokenSpan, find_in_output, find_in_prompt
from lmms_eval_mai.errors import ArgumentError, PromptTooLong, SampleError


class LoadedModel:
    """The model of one engine, its assistant if there is one, and its processor."""

    def __init__(self, config: EngineConfig, options: TransformersOptions) -> None:
        """Load everything. Raises transformers' errors, and `ValueError` or `ArgumentError` if the model cannot give
        attention weights and `config.attention` needs them."""
        self._config = config
        path = os.path.expanduser(config.model)
        source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        processor = AutoProcessor.from_pretrained(path, **source)
        self.inputs = InputBuilder(processor)
        self._tokenizer = self.inputs.tokenizer
        self._is_fast = bool(getattr(self._tokenizer, "is_fast", False))
        """Whether the tokens of a text can be read one by one."""
        if config.attention and not self._is_fast:
            raise ArgumentError(
                f"The tokens of {type(self._tokenizer).__name__} cannot be read one by one, so its model cannot give "
                "attention. Use a model with a fast tokenizer of Hugging Face, or transfer=full."
            )
        self.assistant: Any = None
        self._assistant_inputs: InputBuilder | None = None
        """None: the assistant prepares images as the model does, as most do within one family."""
        with quiet_transformers():
            self._model = _load(path, options, config.attention, **source)
            if options.assistant_model is not None:
                hide_assisted_decoding_warnings()
                self.assistant = _load(options.assistant_model, options)
                # The checkpoint's own end token would end the drafts of a call with `ignore_eos`.
                reset_generation_config(self.assistant)
                self.assistant.generation_config.num_assistant_tokens = options.num_assistant_tokens
                own = AutoProcessor.from_pretrained(os.path.expanduser(options.assistant_model))
                if own.image_processor.to_dict() != processor.image_processor.to_dict():
                    self._assistant_inputs = InputBuilder(own)
        self._attention = AttentionReader(self._model) if config.attention else None
        self._eos_token_ids = reset_generation_config(self._model)
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(options.max_model_len or limit or 1 << 30)
        """Tokens of prompt and answer."""
        self._longest_token = max(map(len, self._tokenizer.get_vocab()))

    def prepare(self, prompt: Prompt) -> tuple[ModelInput, TokenSpan | None]:
        """Return the model input of a prompt, and the tokens of the text to which it asks for attention. None: it asks
        for none, or for attention to its own output. Raises a `SampleError`, or errors of the processor."""
        text = None if prompt.attention is None else prompt.attention.text
        if prompt.attention is not None and self._attention is None:
            raise SampleError(f"{prompt.key}: the {self._config.side} engine was not started with attention weights.")
        # A text of many megabytes would take a minute to tokenize, and the prompts of other calls would wait.
        characters = sum(len(part) for message in prompt.messages for part in message.content if isinstance(part, str))
        if characters > self._context * self._longest_token:
            raise self._too_long(prompt, f"{characters} characters")
        found = self.inputs.build(prompt.messages, offsets=text is not None)
        if found.length >= self._context:
            raise self._too_long(prompt, f"{found.length} tokens")
        return found, None if text is None else find_in_prompt(found.offsets, prompt, text)

    def _too_long(self, prompt: Prompt, size: str) -> PromptTooLong:
        return PromptTooLong(
            f"{prompt.key}: the prompt has {size}, and the context of {self._config.model} has {self._context} tokens. "
            f"Raise {self._config.side}_max_model_len if the model can take more."
        )

    def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Return the last part of the thinking that fits the context, and the number of dropped tokens. Raises
        `PromptTooLong`, or errors of the processor."""
        rest = self.inputs.build(without_thinking(prompt, thinking)).length
        remedy = f"Raise {self._config.side}_max_model_len."
        space = space_for_thinking(prompt, self._config.model, self._context, rest, sampling.max_tokens, remedy)
        return self.inputs.literal.end(thinking, space)

    def generate(self, batch: list[Request]) -> list[Call]:
        """Return one call per request.

        `generate` has one token limit for the whole batch: the space that the context leaves after the shortest prompt.
        The rows of longer prompts are cut afterwards, to the space after their own prompt.
        """
        began_at = time.perf_counter()
        if batch[0].is_scoring_call():  # it has no output token and no text
            call = to_call(batch[0], [], None, self._tokenizer, set(), began_at, None, began_at)
            return [self._with_attention(batch[0], call, [])]
        inputs = self._on_device([request.input for request in batch])
        sampling = batch[0].sampling
        longest_answer = self._context - min(request.input.length for request in batch)
        eos_token_ids = set() if sampling.ignore_eos else self._eos_token_ids
        stopper = StopWhenCancelled([request.answer for request in batch])
        prompt_length = inputs["input_ids"].shape[1]
        # An assistant's drafts are checked many at a time, so there is no step for each token.
        recorder = LogprobRecorder() if self.assistant is None and self._is_fast else None
        processors = [recorder] if recorder is not None else []
        stop_texts = [StopAtTexts(self._tokenizer, prompt_length, sampling.stop)] if sampling.stop else []
        drafts: contextlib.AbstractContextManager[list[int] | None] = contextlib.nullcontext()
        if self.assistant is not None:
            images = batch[0].input.others
            if images and self._assistant_inputs is not None:
                images = self._assistant_inputs.build(batch[0].prompt.messages).others
            drafts = assisted_call(self._model, self.assistant, images)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        with torch.inference_mode(), drafts as passes:
            output = self._model.generate(
                **inputs,
                generation_config=generation_config(
                    sampling, min(sampling.max_tokens, longest_answer), self._pad_id(), eos_token_ids
                ),
                logits_processor=[*processors, *penalties(sampling, prompt_length)],
                stopping_criteria=[stopper, *stop_texts],
                assistant_model=self.assistant,
            )[:, prompt_length:]
            logprobs = [None] * len(batch) if recorder is None else recorder.rows(output)
        first_token_at, ended_at = stopper.first_token_at, time.perf_counter()
        calls = []
        for request, row, values in zip(batch, output.tolist(), logprobs, strict=True):
            own = row[: self._context - request.input.length]
            call = to_call(request, own, values, self._tokenizer, eos_token_ids, began_at, first_token_at, ended_at)
            if passes is not None:
                call = with_draft_counts(call, passes, prompt_length, len(row))
            calls.append(call if request.prompt.attention is None else self._with_attention(request, call, row))
        return calls

    def states(self, prompt: Prompt, model_input: ModelInput, span: TokenSpan | None) -> AttentionStates:
        """Return how each head of the layers that a prompt asks for reads the text of the prompt."""
        assert self._attention is not None and prompt.attention is not None and span is not None
        inputs = self._on_device([model_input])
        layers = self._attention.read(inputs, prompt.attention.layers, span.start, span.end)
        return AttentionStates(span.texts, tuple(layers))

    def _with_attention(self, request: Request, call: Call, output: list[int]) -> Call:
        """Return a call with the attention weights that it asks for, and with the time that they took. `output`: at
        least all tokens of the call."""
        assert request.prompt.attention is not None and self._attention is not None
        if request.span is not None:
            texts, prompt, begin = request.span.texts, request.input, request.span.start
        else:
            tokens = output[: call.output_tokens]
            texts = find_in_output(tokens, self._tokenizer, call.key, call.text)
            prompt, begin = request.input.with_output(tokens[:-1]), request.input.length
        end = min(begin + len(texts), prompt.length)
        layers = self._attention.read(self._on_device([prompt]), request.prompt.attention.layers, begin, end)
        # The last token of an answer is never fed to the model. It has text if the limit ended the answer.
        rows = tuple((*layer.weights.mean(0).tolist(), 0.0)[: len(texts)] for layer in layers)
        return replace(call, attention=TokenWeights(texts, rows), total_s=time.perf_counter() - request.submitted_at)

    def _on_device(self, prompts: list[ModelInput]) -> dict[str, Any]:
        return on_device(batch_of(prompts, self._pad_id()), self._model)

    def _pad_id(self) -> int:
        own = self._tokenizer.pad_token_id
        return int(own if own is not None else self._tokenizer.eos_token_id)


def _load(path: str, options: TransformersOptions, attention: bool = False, **source: Any) -> Any:
    """Return the model of a checkpoint, ready for inference. Raises transformers' errors. `attention`: whether the
    model must give attention weights."""
    return AutoModelForImageTextToText.from_pretrained(
        os.path.expanduser(path),
        dtype=options.dtype,
        attn_implementation=register() if attention else options.attn_implementation,
        device_map=device_of(options),
        **source,
    ).eval()
