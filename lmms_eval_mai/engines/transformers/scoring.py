"""Gives the attention weights that calls ask for, with one loaded model.

A call with `AttentionRequest.text` and a limit of one output token is a scoring call: one forward pass up to the
highest requested layer, and no token is decoded. For any other call the weights are taken while it decodes.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from lmms_eval_mai.contract import Call, Prompt, TokenWeights
from lmms_eval_mai.engines.token_texts import TokenReader, TokenSpan
from lmms_eval_mai.engines.transformers.attention import (
    AttentionStates,
    OutputObserver,
    PromptObserver,
    ScoringDone,
    Shown,
    decoder_layers,
    observed,
)
from lmms_eval_mai.engines.transformers.batching import Request
from lmms_eval_mai.errors import SampleError

Rows = tuple[tuple[float, ...], ...]


class AttentionReader:
    """Reads the attention weights of one loaded model."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Raises `ValueError` or `ArgumentError` if the model cannot give attention weights."""
        self._model = model
        self._layers = decoder_layers(model)
        self._depth = max(self._layers.values())
        self._tokens = TokenReader(tokenizer)

    def find_text(self, prompt: Prompt, ids: Sequence[int]) -> TokenSpan | None:
        """Return the tokens of the text that a prompt asks about. None: it asks about its own output.

        `ids`: tokens of the prompt. Raises `SampleError` if the model lacks a layer, or the text is not found.
        """
        assert prompt.attention is not None
        wrong = [layer for layer in prompt.attention.layers if not 1 <= layer <= self._depth]
        if wrong or not prompt.attention.layers:
            raise SampleError(
                f"{prompt.key}: attention was asked for in layers {prompt.attention.layers}, and the model has layers "
                f"1 to {self._depth}."
            )
        text = prompt.attention.text
        return None if text is None else self._tokens.find_in_prompt(ids, prompt, text)

    def score(self, inputs: dict[str, Any], request: Request, began_at: float) -> Call:
        """Return a scoring call. It has no output token and no text, and layers above the highest requested one were
        not run. `inputs`: the prompt alone, on the model's device."""
        assert request.prompt.attention is not None and request.span is not None
        layers = request.prompt.attention.layers
        observer = self._run(inputs, layers, request.span)
        rows = _rows(observer, layers, 0)
        ended_at = time.perf_counter()
        return Call(
            key=request.prompt.key,
            text="",
            finish_reason="length",
            prompt_tokens=request.input.length,
            cached_tokens=0,
            output_tokens=0,
            queued_s=began_at - request.prepared_at,
            ttft_s=None,
            total_s=ended_at - request.submitted_at,
            attention=TokenWeights(request.span.texts, rows),
            image_tokens=request.input.image_tokens,
        )

    def states(self, inputs: dict[str, Any], layers: Sequence[int], span: TokenSpan) -> AttentionStates:
        """Return how each head of the layers reads a text. `inputs`: the prompt alone, on the model's device."""
        observer = self._run(inputs, layers, span, states=True)
        return AttentionStates(span.texts, tuple(observer.states[layer] for layer in layers))

    def _run(
        self, inputs: dict[str, Any], layers: Sequence[int], span: TokenSpan, states: bool = False
    ) -> PromptObserver:
        observer = PromptObserver(layers, {0: (span.start, span.end)}, stops=True, states=states)
        with torch.inference_mode(), observed(observer, self._layers), contextlib.suppress(ScoringDone):
            self._model(**inputs, use_cache=False, logits_to_keep=1)
        return observer

    @contextlib.contextmanager
    def during(self, batch: Sequence[Request]) -> Iterator["BatchAttention"]:
        """Take the attention that the calls of a batch ask for while the block decodes them."""
        attention = BatchAttention(batch, self._tokens)
        with observed(attention, self._layers):
            yield attention


class BatchAttention:
    """Observes the decoding of one batch, padded on the left."""

    def __init__(self, batch: Sequence[Request], tokens: TokenReader) -> None:
        self._batch, self._tokens = batch, tokens
        longest = max(request.input.length for request in batch)
        self._padding = [longest - request.input.length for request in batch]
        spans: dict[int, tuple[int, int]] = {}
        prompt_layers: set[int] = set()
        output_layers: set[int] = set()
        for row, (request, padding) in enumerate(zip(batch, self._padding, strict=True)):
            if request.prompt.attention is not None and request.span is not None:
                spans[row] = request.span.start + padding, request.span.end + padding
                prompt_layers.update(request.prompt.attention.layers)
            elif request.prompt.attention is not None:
                output_layers.update(request.prompt.attention.layers)
        self._prompt = PromptObserver(sorted(prompt_layers), spans, stops=False)
        self._output = OutputObserver(output_layers)
        self.layers = frozenset(prompt_layers | output_layers)

    def see(self, layer: int, shown: Shown) -> None:
        for observer in (self._prompt, self._output):
            if layer in observer.layers:
                observer.see(layer, shown)

    def added_to(self, call: Call, row: int, output: Sequence[int]) -> Call:
        """Return the call of one row with the weights that it asks for. `output`: at least all tokens of the call."""
        request = self._batch[row]
        asked = request.prompt.attention
        if asked is None:
            return call
        if request.span is not None:
            weights = TokenWeights(request.span.texts, _rows(self._prompt, asked.layers, row))
        else:
            tokens = self._tokens.find_in_output(output[: call.output_tokens], call.key, call.text).texts
            place = (row, self._padding[row], call.prompt_tokens, call.output_tokens)
            found = (self._output.weights(layer, *place) for layer in asked.layers)
            # The last token was never fed. It has text if the limit ended the answer.
            weights = TokenWeights(tokens, tuple(tuple([*row, 0.0][: len(tokens)]) for row in found))
        return replace(call, attention=weights)


def _rows(observer: PromptObserver, layers: Sequence[int], row: int) -> Rows:
    missing = [layer for layer in layers if (layer, row) not in observer.weights]
    if missing:
        raise ValueError(f"layer {missing[0]} has no attention")
    return tuple(tuple(observer.weights[layer, row].tolist()) for layer in layers)
