"""Select() of Eq. 12: its properties for any tokens and weights."""

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import quick

from lmms_eval_mai.method.sparse import Selection, Sparse, select

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
