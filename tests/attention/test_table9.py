"""Table 9 and its controls, from answers and scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few

from lmms_eval_mai.attention.controls import last_tokens, random_tokens, text_of
from lmms_eval_mai.attention.table9 import FULL, SIMPLE, Answer, Method, Scored, methods, rows

LAYERS = (1, 3)
TEXTS = {"simple": "no", "full": "yes", "sparse": "yes", "random": "no", "last": "maybe"}


def answers(documents: int) -> dict[int, dict[Method, Answer]]:
    """Return answers that differ between the methods. In document 0, sparse transfer of layer 3 is wrong."""
    found = {
        number: {
            method: Answer(TEXTS[method.name], 10 * (method.layer or 0), None, 100 + number, 200 + number)
            for method in methods(LAYERS)
        }
        for number in range(documents)
    }
    found[0][Method("sparse", 3)] = Answer("no", 30, None, 100, 200)
    return found


def score(method: Method, texts: dict[int, str]) -> Scored:
    return Scored([float(text == "yes") for text in texts.values()], {"f1": len(texts) / 100})


def test_table_has_all_methods_with_scores_and_tokens() -> None:
    found = {row.method: row for row in rows(answers(20), LAYERS, score)}
    assert list(found) == [SIMPLE, FULL, *(Method(name, n) for name in ("sparse", "random", "last") for n in LAYERS)]
    assert found[FULL].score.value == 1 and found[SIMPLE].score.value == 0
    assert found[Method("sparse", 3)].score.value == 0.95
    assert found[Method("sparse", 3)].tokens["kept_tokens"].value == 30
    assert found[FULL].tokens["prompt_tokens"].value == pytest.approx(109.5)
    assert found[FULL].tokens["prefilled_tokens"].value == pytest.approx(209.5)
    assert found[FULL].metrics == {"f1": 0.2}
    assert found[Method("sparse", 3)].scores == (0.0, *[1.0] * 19)


def test_sparse_transfer_is_compared_with_full_transfer_and_with_the_controls_of_its_layer() -> None:
    found = {row.method: row for row in rows(answers(20), LAYERS, score)}
    sparse = {one.other: one for one in found[Method("sparse", 3)].comparisons}
    assert set(sparse) == {FULL, Method("random", 3), Method("last", 3)}
    assert (sparse[FULL].test.better, sparse[FULL].test.worse, sparse[FULL].test.p) == (0, 1, 1)
    against_random = sparse[Method("random", 3)]
    assert (against_random.test.better, against_random.test.worse) == (19, 0)
    assert against_random.test.p == pytest.approx(2 * 0.5**19)
    # Two layers are tested, and layer 1, with 20 documents, has the smaller p.
    assert against_random.corrected_p == pytest.approx(against_random.test.p)
    first = {one.other: one for one in found[Method("sparse", 1)].comparisons}[Method("random", 1)]
    assert first.corrected_p == pytest.approx(2 * first.test.p)


def test_record_of_a_row_has_intervals_metrics_and_tests() -> None:
    (row,) = [row for row in rows(answers(20), LAYERS, score) if row.method == Method("sparse", 3)]
    record = row.record()
    assert (record["method"], record["layer"], record["documents"], record["f1"]) == ("sparse", 3, 20, 0.2)
    assert record["score_low"] < record["score"] == 0.95 < record["score_high"]
    assert (record["against_random_better"], record["against_full_worse"]) == (19, 1)


@few
@given(tokens=st.integers(0, 60), seed=st.text(max_size=5), data=st.data())
def test_random_tokens_are_positions_of_the_thinking_and_grow_with_their_number(
    tokens: int, seed: str, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, tokens))
    found = random_tokens(tokens, kept, seed)
    assert len(found) == kept and found == sorted(set(found)) and set(found) <= set(range(tokens))
    assert found == random_tokens(tokens, kept, seed)
    assert set(found) <= set(random_tokens(tokens, min(kept + 1, tokens), seed))


def test_random_tokens_differ_between_seeds() -> None:
    assert len({tuple(random_tokens(30, 10, str(seed))) for seed in range(5)}) == 5


def test_last_tokens_are_joined_in_the_order_of_the_thinking() -> None:
    tokens = ["The", " shape", " is", " red", "."]
    assert text_of(tokens, last_tokens(5, 2)) == " red."
    assert text_of(tokens, [4, 0, 1]) == "The shape."
    assert text_of(tokens, last_tokens(5, 0)) == ""
