"""The distribution of attention over the tokens of a thinking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few

from lmms_eval_mai.attention.sparsity import (
    heaviest_texts,
    heaviest_tokens,
    kept_counts,
    kept_share,
    total_weight,
)

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=30)


def test_total_weight_is_the_attention_on_all_tokens_of_the_thinking() -> None:
    assert total_weight([[[0.125, 0.25], [0.0, 0.5]]]).tolist() == [[0.375, 0.5]]


def test_kept_share_counts_the_heaviest_tokens_that_carry_delta() -> None:
    # 0.4 + 0.3 = 0.7 < 0.8, and 0.4 + 0.3 + 0.2 = 0.9; the second head reads one token.
    weights = np.array([[[0.1, 0.4, 0.2, 0.3], [0.0, 0.0, 5.0, 0.0]]])
    assert kept_counts(weights, 0.8).tolist() == [[3, 1]]
    assert kept_share(weights, 0.8).tolist() == [[0.75, 0.25]]


def test_sum_that_reaches_delta_exactly_needs_no_further_token() -> None:
    assert int(kept_counts([0.1, 0.3, 0.1, 0.5], 0.8)) == 2
    assert int(kept_counts([1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 0.7)) == 7


@few
@given(WEIGHTS, st.floats(0.01, 1))
def test_kept_tokens_carry_delta_and_one_token_less_does_not(weights: list[int], delta: float) -> None:
    count = int(kept_counts(weights, delta))
    heaviest_first = sorted(weights, reverse=True)
    assert 1 <= count <= len(weights)
    assert sum(heaviest_first[:count]) >= (delta - 1e-6) * sum(weights)
    assert sum(heaviest_first[: count - 1]) < delta * sum(weights)


@few
@given(WEIGHTS)
def test_delta_1_keeps_all_tokens_of_any_head(weights: list[int]) -> None:
    assert int(kept_counts(weights, 1)) == len(weights)
    assert int(kept_counts([0.0 for _ in weights], 0.8)) == len(weights)


def test_heaviest_tokens_of_one_thinking_are_listed_one_by_one() -> None:
    found = heaviest_tokens(["a", " b", "a", "c"], [2.0, 4.0, 3.0, 1.0], 3)
    assert [(one.text, one.share) for one in found] == [(" b", 0.4), ("a", 0.3), ("a", 0.2)]


def test_shares_of_a_text_are_added_within_a_document_and_averaged_over_documents() -> None:
    documents = [(["a", "b", "a"], [0.01, 0.02, 0.01]), (["b", "c"], [0.3, 0.1])]
    found = heaviest_texts(documents, 2)
    assert [(one.text, one.documents) for one in found] == [("b", 2), ("a", 1)]
    assert [one.share for one in found] == pytest.approx([(0.5 + 0.75) / 2, 0.25])
