"""The distribution of attention over the tokens of a thinking, and its figures."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few
from support.attention import is_image

from lmms_eval_mai.attention.drawing import draw_figures
from lmms_eval_mai.attention.figures import Reading, heaviest, kept_counts, reading, tables, text
from lmms_eval_mai.attention.results import FILE, Record, write
from lmms_eval_mai.contract import SIDES, Side

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=30)
LAYERS, HEADS, DOCUMENTS = 2, 3, 5


def readings(seed: int, tokens: int = 6) -> dict[Side, Reading]:
    """Return how a document with random weights is read. The first token of each thinking is the heaviest."""
    random = np.random.default_rng(seed)
    found: dict[Side, Reading] = {}
    for more, side in enumerate(SIDES):
        count = tokens + more
        weights = random.random((LAYERS, HEADS, count)) / count / 4
        weights[:, :, 0] = 0.5
        found[side] = reading([f"{side[0]}{n}" for n in range(count)], weights, 0.8)
    return found


@pytest.fixture(scope="module")
def documents() -> dict[int, dict[Side, Reading]]:
    return {number: readings(number) for number in range(3, 3 + DOCUMENTS)}


@pytest.fixture(scope="module")
def rows(documents: dict[int, dict[Side, Reading]]) -> dict[str, list[Record]]:
    return tables(documents, 0.8)


def test_kept_tokens_are_the_heaviest_ones_that_carry_delta() -> None:
    # 0.4 + 0.3 = 0.7 < 0.8, and 0.4 + 0.3 + 0.2 = 0.9; the second head reads one token.
    weights = np.array([[[0.1, 0.4, 0.2, 0.3], [0.0, 0.0, 5.0, 0.0]]])
    assert kept_counts(weights, 0.8).tolist() == [[3, 1]]
    found = reading(["a", "b", "c", "d"], weights, 0.8)
    assert found.total_weight == pytest.approx(np.array([[1, 5]])) and found.token_share.tolist() == [[0.75, 0.25]]
    assert found.weights == pytest.approx(np.array([[0.05, 0.2, 2.6, 0.15]]))
    for exactly, delta, count in (([0.1, 0.3, 0.1, 0.5], 0.8, 2), ([1] * 10, 0.7, 7)):
        assert int(kept_counts(exactly, delta)) == count


@few
@given(WEIGHTS, st.floats(0.01, 1))
def test_kept_tokens_carry_delta_and_one_token_less_does_not_and_delta_1_keeps_all(
    weights: list[int], delta: float
) -> None:
    count = int(kept_counts(weights, delta))
    heaviest_first = sorted(weights, reverse=True)
    assert 1 <= count <= len(weights)
    assert sum(heaviest_first[:count]) >= (delta - 1e-6) * sum(weights)
    assert sum(heaviest_first[: count - 1]) < delta * sum(weights)
    assert int(kept_counts(weights, 1)) == int(kept_counts([0.0 for _ in weights], 0.8)) == len(weights)


def test_tokens_of_one_thinking_are_listed_one_by_one_with_the_earlier_of_equal_weights_first() -> None:
    found = heaviest([(["a", " b", "a", "c", "a"], [2.0, 4.0, 2.0, 1.0, 1.0])], 3, by_place=True)
    assert found == [(" b", 0.4, 1), ("a", 0.2, 1), ("a", 0.2, 1)]


def test_shares_of_a_text_are_added_within_a_document_and_averaged_over_documents() -> None:
    found = heaviest([(["a", "b", "a"], [0.01, 0.02, 0.01]), (["b", "c"], [0.3, 0.1])], 2)
    assert [(token, number) for token, _, number in found] == [("b", 2), ("a", 1)]
    assert [share for _, share, _ in found] == pytest.approx([(0.5 + 0.75) / 2, 0.25])


def test_figures_3_to_5_have_means_with_intervals_over_documents(
    documents: dict[int, dict[Side, Reading]], rows: dict[str, list[Record]]
) -> None:
    by_layer = rows["figure3"]
    assert [(row["thinking"], row["layer"]) for row in by_layer] == [(side, n) for side in SIDES for n in (1, 2)]
    totals = [one["large"].total_weight[1] for one in documents.values()]
    assert by_layer[3]["total_weight"] == pytest.approx(np.mean(totals)) and by_layer[3]["documents"] == DOCUMENTS
    assert by_layer[3]["total_weight_low"] < np.mean(totals) < by_layer[3]["total_weight_high"]
    by_head = rows["figures4_5"]
    assert len(by_head) == 2 * LAYERS * HEADS and by_head[-1]["head"] == HEADS
    assert by_head[-1]["total_weight"] == pytest.approx(np.mean([one[2] for one in totals]))
    shares = [one["small"].token_share[0, 0] for one in documents.values()]
    assert by_head[0]["token_share"] == pytest.approx(np.mean(shares))
    assert "Figure 3, 5 documents" in text(by_layer, 0.8) and f"{np.mean(totals):.1%}" in text(by_layer, 0.8)


def test_table_16_has_the_heaviest_tokens_over_documents_and_of_the_first_document(
    documents: dict[int, dict[Side, Reading]], rows: dict[str, list[Record]]
) -> None:
    first = rows["table16"][0]
    assert (first["thinking"], first["layer"], first["rank"], first["token"]) == ("small", 1, 1, "s0")
    assert first["documents_with_token"] == DOCUMENTS and 0.5 < first["weight_share"] < 1
    example = rows["table16_document"][0]
    weights = documents[3]["small"].weights[0]
    assert example["doc_id"] == 3 and example["weight_share"] == pytest.approx(weights[0] / weights.sum())
    assert example["kept_tokens"] == kept_counts(weights, 0.8) and example["kept_tokens_low"] is None


def test_one_document_has_rows_and_drawn_figures_without_intervals(tmp_path: Path) -> None:
    found = tables({0: readings(0)}, 0.8)
    assert found["figure3"][0]["total_weight_low"] is None
    write(tmp_path, found)
    assert len(pq.read_table(tmp_path / FILE)) == sum(map(len, found.values()))
    draw_figures(tmp_path, found, 0.8)
    assert all(is_image(tmp_path / f"figure{n}{kind}") for n in (3, 4, 5) for kind in (".svg", ".png"))
