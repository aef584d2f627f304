"""A loaded model with its processor. It answers batches in one thread, and prepares prompts in another one."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoProcessor

from lmms_eval_mai.contract import Call, EngineConfig
from lmms_eval_mai.engines.logs import quiet_transformers
from lmms_eval_mai.engines.token_texts import TokenSpan
from lmms_eval_mai.engines.transformers.assistant import (
    AssistantImages,
    DraftCounts,
    assisted_call,
    set_draft_length,
)
from lmms_eval_mai.engines.transformers.attention import AttentionStates
from lmms_eval_mai.engines.transformers.batching import BatchTimes, Request, is_scoring_call, to_call
from lmms_eval_mai.engines.transformers.generation import (
    StopWhenCancelled,
    generation_config,
    hide_assisted_decoding_warnings,
    penalties,
    reset_generation_config,
    stop_at_texts,
)
from lmms_eval_mai.engines.transformers.inputs import InputBuilder, ModelInput, batch_of
from lmms_eval_mai.engines.transformers.loading import load_model
from lmms_eval_mai.engines.transformers.options import TransformersOptions
from lmms_eval_mai.engines.transformers.scoring import AttentionReader, BatchAttention


class LoadedModel:
    """The model of one engine, its assistant if there is one, and its processor."""

    def __init__(self, config: EngineConfig, options: TransformersOptions) -> None:
        """Load everything. Raises transformers' errors, and `ValueError` or `ArgumentError` if the model cannot give
        attention weights and `config.attention` needs them."""
        path = os.path.expanduser(config.model)
        source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        self.inputs = InputBuilder(AutoProcessor.from_pretrained(path, **source))
        self.assistant: Any = None
        self._assistant_images: AssistantImages | None = None
        self.attention: AttentionReader | None = None
        with quiet_transformers():
            self._model = load_model(path, options, config.attention, **source)
            if options.assistant_model is not None:
                hide_assisted_decoding_warnings()
                self.assistant = load_model(options.assistant_model, options)
                set_draft_length(self.assistant, options.num_assistant_tokens)
                self._assistant_images = AssistantImages(options.assistant_model, self.inputs)
        if config.attention:
            self.attention = AttentionReader(self._model, self.inputs.tokenizer)
        self._eos_token_ids = reset_generation_config(self._model)
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self.context = int(options.max_model_len or limit or 1 << 30)
        """Tokens of prompt and answer."""

    def generate(self, batch: list[Request], is_stopped: Callable[[], bool]) -> list[Call]:
        """Return one call per request. `is_stopped`: whether the engine was closed.

        `generate` has one token limit for the whole batch: the space that the context leaves after the shortest prompt.
        The rows of longer prompts are cut afterwards, to the space after their own prompt.
        """
        began_at = time.perf_counter()
        inputs = self._on_device([request.input for request in batch])
        if self.attention is not None and is_scoring_call(batch[0].prompt, batch[0].sampling):
            return [self.attention.score(inputs, batch[0], began_at)]
        tokenizer, sampling = self.inputs.tokenizer, batch[0].sampling
        longest_answer = self.context - min(request.input.length for request in batch)
        eos_token_ids = set() if sampling.ignore_eos else self._eos_token_ids
        stopper = StopWhenCancelled([request.answer for request in batch], is_stopped)
        prompt_length = inputs["input_ids"].shape[1]
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        with torch.inference_mode(), self._drafts(batch, prompt_length) as counts, self._watch(batch) as attention:
            output = self._model.generate(
                **inputs,
                generation_config=generation_config(
                    sampling, min(sampling.max_tokens, longest_answer), self._pad_id(), eos_token_ids
                ),
                logits_processor=penalties(sampling, prompt_length),
                stopping_criteria=[stopper, *stop_at_texts(sampling, tokenizer, prompt_length)],
                assistant_model=self.assistant,
            )
        ended_at = time.perf_counter()
        times = BatchTimes(began_at, stopper.first_token_at or ended_at, ended_at)
        rows = output[:, prompt_length:].tolist()
        calls = [
            to_call(request, row[: self.context - request.input.length], tokenizer, eos_token_ids, times)
            for request, row in zip(batch, rows, strict=True)
        ]
        if attention is not None:
            calls = [attention.added_to(call, number, rows[number]) for number, call in enumerate(calls)]
        return calls if counts is None else [counts.added_to(calls[0], len(rows[0]))]

    def states(self, prompt: ModelInput, layers: Sequence[int], span: TokenSpan) -> AttentionStates:
        """Return how each head of the layers reads a text of the prompt. The model must give attention weights."""
        assert self.attention is not None
        return self.attention.states(self._on_device([prompt]), layers, span)

    def _drafts(
        self, batch: list[Request], prompt_length: int
    ) -> contextlib.AbstractContextManager[DraftCounts | None]:
        if self._assistant_images is None:
            return contextlib.nullcontext()
        images = self._assistant_images.of(batch[0].prompt.messages, batch[0].input)
        return assisted_call(self._model, self.assistant, prompt_length, images)

    def _watch(self, batch: list[Request]) -> contextlib.AbstractContextManager[BatchAttention | None]:
        return contextlib.nullcontext() if self.attention is None else self.attention.during(batch)

    def _on_device(self, prompts: list[ModelInput]) -> dict[str, Any]:
        return {
            name: tensor.to(self._model.device, self._model.dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in batch_of(prompts, self._pad_id()).items()
        }

    def _pad_id(self) -> int:
        tokenizer = self.inputs.tokenizer
        return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
