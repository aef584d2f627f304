"""Select() of Eq. 12: its properties for any tokens and weights."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import quick

from lmms_eval_mai.contract import TokenWeights
from lmms_eval_mai.method.agreement import parts_without_answer, without_answer
from lmms_eval_mai.method.sparse import Selection, Sparse, cut_to, select

TOKENS = st.sampled_from(["", "a", " the", "[[", "<|im_end|>", "é", "\n\n", "[[answer]]", "{", "\ufffd"])
WEIGHTS = st.sampled_from([0.0, 0.1, 0.25, 5e-324, 1.0]) | st.floats(0, 1)
DELTAS = st.sampled_from([0.8, 1.0, 0.1, 5e-324]) | st.floats(0, 1, exclude_min=True)

Scored = list[tuple[str, float]]
"""Texts of tokens with their weights."""

scored = st.lists(st.tuples(TOKENS, WEIGHTS), max_size=12)


def selected(pairs: Scored, **arguments: object) -> Selection:
    return select([text for text, _ in pairs], [weight for _, weight in pairs], Sparse(**arguments))  # type: ignore[arg-type]


def weight_of(pairs: Scored, positions: Sequence[int]) -> Fraction:
    """Return the exact sum of the weights at these positions."""
    return sum((Fraction(pairs[position][1]) for position in positions), Fraction(0))


@quick
@given(pairs=scored, delta=DELTAS)
def test_the_fewest_heaviest_tokens_that_carry_delta_are_kept_in_the_order_of_the_thinking(
    pairs: Scored, delta: float
) -> None:
    found = selected(pairs, delta=delta)
    ranking = sorted((-weight, position) for position, (_, weight) in enumerate(pairs))  # of equal ones the earliest
    assert found.positions == tuple(position for _, position in ranking)[: found.kept_tokens]
    assert found.scored_tokens == len(pairs) and 0 <= found.share <= 1  # also False for NaN
    assert found.text == "".join(pairs[position][0] for position in sorted(found.positions))
    total = weight_of(pairs, range(len(pairs)))
    if delta == 1 or total == 0:  # the whole thinking
        assert found.kept_tokens == len(pairs)
        return
    allowed = Fraction(1e-15)
    assert found.share >= delta and weight_of(pairs, found.positions) / total >= Fraction(delta) - allowed
    assert weight_of(pairs, found.positions[:-1]) / total < Fraction(delta) + allowed


@pytest.mark.parametrize("weights", [[math.nan, 1.0], [math.inf, 1.0], [-0.1, 1.0], [1.0]])
def test_weights_that_are_no_probabilities_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="attention weight"):
        select(["a", "b"], weights, Sparse())


# --- the small model's answer is cut before the weights are normalised -------------------------------------

PIECES = st.sampled_from(
    ["The ", "dog", "[[", "]]", "[[yes]]", ". ", " ", "\n", "<think>", "</think>", "", "é", "]] [["]
)


@quick
@given(tokens=st.lists(PIECES, max_size=10).map(tuple))
def test_tokens_of_the_parts_without_the_answer_are_the_text_without_the_answer(tokens: tuple[str, ...]) -> None:
    text = "".join(tokens)
    numbers = tuple(float(number) for number in range(len(tokens)))
    found = cut_to(TokenWeights(tokens, numbers), parts_without_answer(text))
    assert "".join(found.tokens) == without_answer(text)
    for part, number in zip(found.tokens, found.weights, strict=True):  # every token keeps its own weight
        assert part == "" == tokens[int(number)] or (part and set(part) <= set(tokens[int(number)]))
    assert all(a < b for a, b in itertools.pairwise(found.weights))


def test_token_at_the_border_of_the_answer_is_cut_and_a_token_without_text_belongs_to_its_character() -> None:
    tokens = ("", "é", " red.\n\n[[", "red", "]]", "")
    parts = parts_without_answer("".join(tokens))
    found = cut_to(TokenWeights(tokens, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)), parts)
    assert found == TokenWeights(("", "é", " red."), (0.1, 0.2, 0.3))
