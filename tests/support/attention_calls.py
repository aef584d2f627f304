"""Calls that ask for attention weights, and their comparison."""

from dataclasses import replace

import pytest
from support.engines import make_image, prompt

from lmms_eval_mai.contract import AttentionRequest, Call, Prompt, TokenWeights
from lmms_eval_mai.paper.sparse import Sparse, select

LAYERS = (3, 1, 2)
"""All layers of the small tiny checkpoint, in an order of the caller's own."""
THINKING = (
    "The image shows a red bar. So the answer is [[Yes]].",
    "日本語 e\u0301 No.\n\n" * 6,
    "First look at the bars, then at the numbers below. " * 4,
)


def scored(number: int) -> Prompt:
    """A prompt that asks for the attention to a thinking."""
    thinking = THINKING[number % len(THINKING)]
    image = make_image(("red", "green", "blue", "navy")[number % 4], (96 + 8 * number, 64))
    own = prompt(number, image, "Is there a bar?\n", f"Reference: {thinking}\nAnswer.")
    return replace(own, attention=AttentionRequest(LAYERS, thinking))


def thought(number: int) -> Prompt:
    """The same prompt, which asks for the attention to its own output."""
    return replace(scored(number), attention=AttentionRequest(LAYERS))


def attention_of(call: Call) -> TokenWeights:
    assert isinstance(call, Call), call
    assert call.attention is not None
    return call.attention


def assert_same_attention(call: Call, other: Call) -> None:
    """Check that two calls have the same tokens with the same weights, and that the same tokens are selected."""
    one, expected = attention_of(call), attention_of(other)
    assert one.tokens == expected.tokens and len(one.weights) == len(expected.weights) == len(LAYERS)
    for row, wanted in zip(one.weights, expected.weights, strict=True):
        assert len(row) == len(one.tokens) and row == pytest.approx(wanted, abs=1e-5)
        assert max(row) > 1e-3  # so that 1e-5 is a small difference
        kept = [select(one.tokens, weights, Sparse()) for weights in (row, wanted)]
        assert kept[0].text == kept[1].text and kept[0].kept_tokens < kept[0].scored_tokens
