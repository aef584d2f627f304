"""The files of the analysis, and the figures of documents on the disk."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmms_eval_mai.attention import report
from lmms_eval_mai.attention.documents import DocumentFigures, FiguresFolder, LayerStates, digest, measure
from lmms_eval_mai.attention.table9 import Answer, Scored, methods
from lmms_eval_mai.contract import SIDES

LAYERS, HEADS = 2, 3


def figures(seed: int, tokens: int = 6) -> DocumentFigures:
    """Return the figures of a document with random states. The first token of each thinking is the heaviest."""
    random = np.random.default_rng(seed)

    def states(count: int) -> list[LayerStates]:
        found = []
        for _ in range(LAYERS):
            weights = random.random((HEADS, count)) / count / 4
            weights[:, 0] = 0.5
            vectors = random.standard_normal((2, HEADS, count, 4))
            found.append(LayerStates(weights, weights / weights.sum(axis=-1, keepdims=True), *vectors))
        return found

    texts = {side: tuple(f"{side[0]}{n}" for n in range(tokens + i)) for i, side in enumerate(SIDES)}
    return measure(texts, {side: states(len(one)) for side, one in texts.items()}, 0.8)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def is_image(path: Path) -> bool:
    head = path.read_bytes()[:200]
    return head.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in head


@pytest.fixture(scope="module")
def documents() -> dict[int, DocumentFigures]:
    return {number: figures(number) for number in range(3, 8)}


@pytest.fixture(scope="module")
def written(documents: dict[int, DocumentFigures], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the figures, and their text."""
    folder = tmp_path_factory.mktemp("figures")
    return folder, report.write_figures(folder, documents, 0.8)


def test_figures_3_to_5_have_means_with_intervals_over_documents(
    documents: dict[int, DocumentFigures], written: tuple[Path, str]
) -> None:
    folder, text = written
    assert "Figure 3, 5 documents" in text
    by_layer = read(folder / "figure3.csv")
    assert [(row["thinking"], row["layer"]) for row in by_layer] == [(s, str(n)) for s in SIDES for n in (1, 2)]
    totals = [one.readings["large"].total[1] for one in documents.values()]
    assert float(by_layer[3]["total_weight"]) == pytest.approx(np.mean(totals), rel=1e-4)
    assert float(by_layer[3]["total_weight_low"]) < np.mean(totals) < float(by_layer[3]["total_weight_high"])
    by_head = read(folder / "figure4.csv")
    assert len(by_head) == 2 * LAYERS * HEADS
    assert float(by_head[-1]["total_weight"]) == pytest.approx(np.mean([one[2] for one in totals]), rel=1e-4)
    shares = [one.readings["small"].share[0, 0] for one in documents.values()]
    assert float(read(folder / "figure5.csv")[0]["token_share"]) == pytest.approx(np.mean(shares), rel=1e-4)
    assert all(is_image(folder / f"figure{n}{kind}") for n in (3, 4, 5) for kind in (".svg", ".png"))


def test_table_16_lists_the_heaviest_tokens_over_documents_and_of_the_first_document(
    documents: dict[int, DocumentFigures], written: tuple[Path, str]
) -> None:
    folder, _ = written
    first = read(folder / "table16.csv")[0]
    assert (first["thinking"], first["layer"], first["rank"], first["token"]) == ("small", "1", "1", "s0")
    assert first["documents_with_token"] == "5" and 0.5 < float(first["weight_share"]) < 1
    example = read(folder / "table16_document_3.csv")
    weights = documents[3].readings["small"].mean_weights[0]
    assert float(example[0]["weight_share"]) == pytest.approx(weights[0] / weights.sum(), rel=1e-4)


def test_corollary_is_reported_per_head_and_the_same_numbers_give_the_same_svg(
    documents: dict[int, DocumentFigures], tmp_path: Path
) -> None:
    text = report.write_corollary(tmp_path, documents)
    assert f"Corollary 1 with the values, {5 * LAYERS * HEADS} cases" in text and "Violated: 0, with" in text
    rows = read(tmp_path / "corollary.csv")
    assert [row["vectors"] for row in rows] == ["values"] * 6 + ["keys"] * 6
    checks = [one.checks["keys"] for one in documents.values()]
    slacks = [(one.slack / one.norm)[1, 2] for one in checks]
    assert float(rows[-1]["slack"]) == pytest.approx(np.mean(slacks), rel=1e-4)
    assert float(rows[-1]["smallest_slack"]) == pytest.approx(min(slacks), rel=1e-4)
    assert is_image(tmp_path / "corollary.svg") and is_image(tmp_path / "corollary.png")

    (tmp_path / "again").mkdir()
    report.write_corollary(tmp_path / "again", documents)
    assert (tmp_path / "again" / "corollary.svg").read_bytes() == (tmp_path / "corollary.svg").read_bytes()


def test_table_9_has_one_row_per_method_and_one_line_per_answer(tmp_path: Path) -> None:
    layers = (1, 2)
    answers = {
        number: {method: Answer(f"{method.name}\n", number, 4, 50, 60) for method in methods(layers)}
        for number in (0, 5, 9)
    }

    def score(method: Any, texts: dict[int, str]) -> Scored:
        return Scored([float(text.startswith("sparse")) for text in texts.values()], {"accuracy": 0.25})

    text = report.write_table9(tmp_path, answers, layers, score)
    assert text.startswith("Table 9, 3 documents\n") and len(text.splitlines()) == 2 + 8
    rows = read(tmp_path / "table9.csv")
    assert [(row["method"], row["layer"], row["score"]) for row in rows[1:4]] == [
        ("full", "", "0"),
        ("sparse", "1", "1"),
        ("sparse", "2", "1"),
    ]
    assert rows[2]["accuracy"] == "0.25" and rows[2]["against_full_p"] == "0.25"
    lines = read(tmp_path / "table9_documents.csv")
    assert len(lines) == 8 * 3
    assert (lines[-1]["doc_id"], lines[-1]["kept_tokens"], lines[-1]["text"]) == ("9", "9", "last\n")
    assert is_image(tmp_path / "table9.svg") and is_image(tmp_path / "table9.png")


def test_figures_of_a_document_are_read_as_they_were_written_unless_they_depend_on_something_else(
    tmp_path: Path,
) -> None:
    stored, origin = FiguresFolder(tmp_path), digest("model", 0.8, {"small": "a thinking"})
    assert stored.load(4, origin) is None
    written = figures(1)
    stored.save(4, origin, written)
    found = stored.load(4, origin)
    assert found is not None
    assert found.readings["small"].tokens == written.readings["small"].tokens
    assert np.array_equal(found.readings["large"].mean_weights, written.readings["large"].mean_weights)
    assert np.array_equal(found.checks["keys"].slack, written.checks["keys"].slack)
    assert found.checks["values"].delta == 0.8
    assert stored.load(4, digest("model", 0.9, {"small": "a thinking"})) is None
    (tmp_path / "4.npz").write_bytes((tmp_path / "4.npz").read_bytes()[:100])
    assert stored.load(4, origin) is None
