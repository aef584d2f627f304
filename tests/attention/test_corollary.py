"""Eq. 11 on numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few

from lmms_eval_mai.attention.corollary import BoundCheck, check, stack


def states(seed: int, tokens: int, heads: int = 3, size: int = 4, sharpness: float = 3.0) -> tuple[np.ndarray, ...]:
    """Return weights and vectors of some heads. The weights do not sum to 1: the context has other tokens."""
    random = np.random.default_rng(seed)
    weights = np.exp(sharpness * random.standard_normal((heads, tokens)))
    return weights / weights.sum() / 2, random.standard_normal((heads, tokens, size))


@few
@given(
    seed=st.integers(0, 10**6),
    tokens=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    delta=st.floats(0.5, 1),
    sharpness=st.floats(0, 5),
)
def test_bound_holds_for_any_states(seed: int, tokens: tuple[int, int], delta: float, sharpness: float) -> None:
    large, small = (states(seed + n, count, sharpness=sharpness) for n, count in enumerate(tokens))
    found = check(large, small, delta)
    assert not found.violated.any() and not found.violated_with_shares.any()
    assert (found.share_large >= delta - 1e-9).all() and (found.share_small >= delta - 1e-9).all()
    assert (found.bound_of_shares <= found.bound + 1e-6 * found.norm).all()
    assert (found.distance <= found.norms + 1e-9).all() and (found.norms <= 2 * found.norm + 1e-9).all()
    assert (found.above_norms | ~found.vacuous).all()


def test_both_sides_of_a_case_that_is_computed_by_hand() -> None:
    # Large: 0.9 at (2, 0) and 0.1 at (0, 1). Small: all weight at (0, 1). c = 2. With delta 0.8 the large model's
    # thinking keeps one token of two, with a share of 0.9.
    large = np.array([[0.45, 0.05]]), np.array([[[2.0, 0.0], [0.0, 1.0]]])
    small = np.array([[0.3]]), np.array([[[0.0, 1.0]]])
    found = check(large, small, 0.8)
    assert found.distance == pytest.approx([np.hypot(1.8, 0.9)])
    assert found.kept_distance == pytest.approx([np.hypot(2, 1)])
    assert (found.norm.item(), found.share_large.item(), found.share_small.item()) == pytest.approx((2, 0.9, 1))
    assert found.bound == pytest.approx([np.hypot(2, 1) + 0.8 * 2])
    assert found.bound_of_shares == pytest.approx([np.hypot(2, 1) + 2 * 0.1 * 2])
    assert found.slack == pytest.approx(found.bound - found.distance)
    assert found.norms == pytest.approx([np.hypot(1.8, 0.1) + 1])
    assert not found.vacuous.item() and found.above_norms.item()


def test_delta_1_leaves_no_slack() -> None:
    found = check(states(0, 9), states(1, 12), 1.0)
    assert found.slack == pytest.approx(0, abs=1e-12)


def test_bound_of_at_least_2c_is_vacuous() -> None:
    one = np.ones((1, 1))
    opposite = check((one, np.array([[[1.0, 0.0]]])), (one, np.array([[[-1.0, 0.0]]])), 0.8)
    assert opposite.distance.item() == 2 and opposite.vacuous.item()
    assert not check((one, np.array([[[1.0, 0.0]]])), (one, np.array([[[0.0, 1.0]]])), 0.9).vacuous.item()


def test_left_side_above_the_right_side_is_a_violation() -> None:
    number = np.array([1.0])
    above = BoundCheck(1.9 * number, number, number, 0.9 * number, 0.9 * number, 2 * number, 0.8)
    assert above.violated.item() and above.violated_with_shares.item()
    between = BoundCheck(1.5 * number, number, number, 0.9 * number, 0.9 * number, 2 * number, 0.8)
    assert not between.violated.item() and between.violated_with_shares.item()


def test_checks_of_several_layers_become_one() -> None:
    checks = [check(states(n, 5), states(n + 10, 7), 0.8) for n in range(2)]
    both = stack(checks)
    assert both.distance.shape == (2, 3) and both.delta == 0.8
    assert both.slack[1] == pytest.approx(checks[1].slack)
