"""Corollary 1 of the paper's appendix on numbers, with the tokens that the analysis keeps.

    ||p_l - p_s|| <= ||p'_l - p'_s|| + 4 (1 - delta) c                                        Eq. 11

p is what one head reads from a thinking: the mean of its vectors, weighted with softmax over the tokens of the thinking
alone. p' is the same over the heaviest tokens, those with a share of at least delta. l and s are the thinkings of the
large and of the small model. c is the largest norm of a vector.

The proof takes the kept share as exactly delta. It is S >= delta, and with S the same proof gives a smaller bound:

    ||p_l - p_s|| <= ||p'_l - p'_s|| + 2 (1 - S_l) c + 2 (1 - S_s) c
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few

from lmms_eval_mai.attention.figures import kept_counts

States = tuple[np.ndarray, np.ndarray]
"""The weights of the tokens of a thinking, and their vectors: (tokens) and (tokens, size)."""


def states(seed: int, tokens: int, sharpness: float) -> States:
    random = np.random.default_rng(seed)
    return np.exp(sharpness * random.standard_normal(tokens)), random.standard_normal((tokens, 4))


def read(states: States, delta: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return p, p' and S."""
    weights, vectors = states[0] / states[0].sum(), states[1]
    heaviest = np.argsort(-weights, kind="stable")[: int(kept_counts(weights, delta))]
    share = weights[heaviest].sum()
    return weights @ vectors, weights[heaviest] @ vectors[heaviest] / share, share


def sides(large: States, small: States, delta: float) -> tuple[float, float, float, float]:
    """Return the left side of Eq. 11, its right side, the right side with the kept shares, and c."""
    (p_l, kept_l, share_l), (p_s, kept_s, share_s) = (read(one, delta) for one in (large, small))
    norm = max(float(np.linalg.norm(vectors, axis=-1).max()) for _, vectors in (large, small))
    kept = float(np.linalg.norm(kept_l - kept_s))
    bounds = kept + 4 * (1 - delta) * norm, kept + 2 * (2 - share_l - share_s) * norm
    return float(np.linalg.norm(p_l - p_s)), *bounds, norm


@few
@given(
    seed=st.integers(0, 10**6),
    tokens=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    delta=st.floats(0.5, 1),
    sharpness=st.floats(0, 5),
)
def test_corollary_holds_for_any_weights_and_vectors(
    seed: int, tokens: tuple[int, int], delta: float, sharpness: float
) -> None:
    large, small = (states(seed + n, count, sharpness) for n, count in enumerate(tokens))
    left, right, right_of_shares, norm = sides(large, small, delta)
    assert left <= right_of_shares + 1e-9 * norm and right_of_shares <= right + 1e-6 * norm


def test_both_sides_of_a_case_that_is_computed_by_hand() -> None:
    # Large: 0.9 at (2, 0) and 0.1 at (0, 1). Small: all weight at (0, 1). c = 2. With delta 0.8 the large model's
    # thinking keeps one token of two, with a share of 0.9.
    large = np.array([0.45, 0.05]), np.array([[2.0, 0.0], [0.0, 1.0]])
    small = np.array([0.3]), np.array([[0.0, 1.0]])
    expected = np.hypot(1.8, 0.9), np.hypot(2, 1) + 0.8 * 2, np.hypot(2, 1) + 2 * 0.1 * 2, 2
    assert sides(large, small, 0.8) == pytest.approx(expected)
