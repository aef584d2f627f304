"""Table 9 and its controls, from answers and scores."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.arithmetic import few
from support.attention import is_image

from lmms_eval_mai.attention.drawing import draw_table9
from lmms_eval_mai.attention.results import Record
from lmms_eval_mai.attention.table9 import Answer, Scored, random_tokens, rows, text

LAYERS = (1, 3)
TEXTS = {"simple": "no", "full": "yes", "sparse": "yes", "random": "no", "last": "maybe"}
WITHOUT_LAYER = [("simple", None), ("full", None)]
BY_LAYER = [(name, layer) for name in ("sparse", "random", "last") for layer in LAYERS]


def answers(documents: int) -> dict[int, list[Answer]]:
    """Return answers that differ between the methods, in the order in which they are made. In document 0, sparse
    transfer of layer 3 is wrong."""
    order = WITHOUT_LAYER + sorted(BY_LAYER, key=lambda one: one[1])
    found = {}
    for number in range(documents):
        texts = {key: "no" if (number, *key) == (0, "sparse", 3) else TEXTS[key[0]] for key in order}
        found[number] = [
            Answer(method, layer, texts[method, layer], 10 * (layer or 0), None, 100 + number, 200 + number)
            for method, layer in order
        ]
    return found


def score(method: str, texts: Mapping[int, str]) -> Scored:
    return Scored([float(text == "yes") for text in texts.values()], {"f1": len(texts) / 100})


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, int | None], Record]:
    """The rows of 20 documents, by method and layer. Each answer is a row of its own too."""
    found, of_answers = rows(answers(20), score)
    wrong = {"doc_id": 0, "method": "sparse", "layer": 3, "text": "no", "score": 0.0, "kept_tokens": 30}
    assert len(of_answers) == 20 * len(found) and any(wrong.items() <= row.items() for row in of_answers)
    return {(row["method"], row["layer"]): row for row in found}


def test_table_has_all_methods_with_scores_metrics_and_tokens(table: dict[tuple[str, int | None], Record]) -> None:
    assert list(table) == WITHOUT_LAYER + BY_LAYER
    assert table["full", None]["score"] == 1 and table["simple", None]["score"] == 0
    sparse = table["sparse", 3]
    assert (sparse["documents"], sparse["score"], sparse["kept_tokens"], sparse["f1"]) == (20, 0.95, 30, 0.2)
    assert sparse["score_low"] < 0.95 < sparse["score_high"]
    assert sparse["prompt_tokens"] == pytest.approx(109.5) and sparse["prefilled_tokens"] == pytest.approx(209.5)
    assert sparse["transferred_tokens"] is None  # the tokenizer is not known


def test_sparse_transfer_is_compared_with_full_transfer_and_with_the_controls_of_its_layer(
    table: dict[tuple[str, int | None], Record],
) -> None:
    sparse = table["sparse", 3]
    others = {name.split("_")[1] for name in sparse if name.startswith("against_")}
    assert others == {"full", "random", "last"}
    assert (sparse["against_full_better"], sparse["against_full_worse"], sparse["against_full_p"]) == (0, 1, 1)
    assert (sparse["against_random_better"], sparse["against_random_worse"]) == (19, 0)
    assert sparse["against_random_p"] == pytest.approx(2 * 0.5**19)
    # Two layers are tested, and layer 1, with 20 documents, has the smaller p.
    assert sparse["against_random_p_holm"] == pytest.approx(sparse["against_random_p"])
    first = table["sparse", 1]
    assert first["against_random_p_holm"] == pytest.approx(2 * first["against_random_p"])
    assert (table["last", 1]["against_full_better"], table["last", 1]["against_full_worse"]) == (0, 20)
    assert (table["full", None]["against_simple_better"], table["full", None]["against_simple_worse"]) == (20, 0)
    assert not any(name.startswith("against_") for name in table["simple", None])


def test_table_is_printed_and_drawn_and_the_same_numbers_give_the_same_svg(tmp_path: Path) -> None:
    found, _ = rows(answers(20), score)
    header, *lines = text(found).splitlines()[1:]
    assert text(found).startswith("Table 9, 20 documents\n") and len(lines) == len(found)
    assert "p against random" in header and lines[1].split()[:2] == ["full", "1.000"]
    draw_table9(tmp_path, found)
    drawn = (tmp_path / "table9.svg").read_bytes()
    draw_table9(tmp_path, found)
    assert (tmp_path / "table9.svg").read_bytes() == drawn
    assert is_image(tmp_path / "table9.svg") and is_image(tmp_path / "table9.png")


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
