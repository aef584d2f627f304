"""The file of the results, the files of single documents, and the engine that reads single heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lmms_eval_mai.attention.figures import Reading, reading
from lmms_eval_mai.attention.heads import HeadReader, load, save
from lmms_eval_mai.attention.results import FILE, start, write
from lmms_eval_mai.contract import EngineConfig, Side
from lmms_eval_mai.errors import ArgumentError

SETTINGS = {"delta": 0.8, "documents": 3}


def rows(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / FILE).to_pylist()


def test_second_part_of_the_analysis_keeps_the_rows_of_the_first(tmp_path: Path) -> None:
    start(tmp_path, SETTINGS)
    write(tmp_path, {"table9": [{"method": "full", "layer": None, "score": 1}, {"method": "sparse", "layer": 2}]})
    start(tmp_path, SETTINGS | {"documents": 4})
    write(tmp_path, {"figure3": [{"layer": 1, "score": 0.5}]})
    write(tmp_path, {"figure3": [{"layer": 3, "head": 1}]})
    assert rows(tmp_path) == [
        {"table": "table9", "method": "full", "layer": None, "score": 1, "head": None},
        {"table": "table9", "method": "sparse", "layer": 2, "score": None, "head": None},
        {"table": "figure3", "method": None, "layer": 3, "score": None, "head": 1},
    ]
    assert isinstance(rows(tmp_path)[1]["layer"], int)


def test_rows_of_other_settings_do_not_stay_beside_new_ones(tmp_path: Path) -> None:
    start(tmp_path, SETTINGS)
    write(tmp_path, {"table9": [{"layer": 1}]})
    start(tmp_path, SETTINGS | {"delta": 0.9})
    write(tmp_path, {"figure3": [{"layer": 1}]})
    assert [row["table"] for row in rows(tmp_path)] == ["figure3"]


def test_what_was_read_of_a_document_is_read_as_it_was_written_unless_it_depends_on_something_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "documents" / "4.parquet"
    assert load(path, "model 0.8") is None
    random = np.random.default_rng(0)
    written: dict[Side, Reading] = {
        "small": reading(["a", "\n", "ü"], random.random((2, 4, 3)), 0.8),
        "large": reading(["b"], random.random((2, 4, 1)), 0.8),
    }
    save(path, "model 0.8", 4, written)
    found = load(path, "model 0.8")
    assert found is not None and list(found) == ["small", "large"]
    for side, expected in written.items():
        assert list(found[side].tokens) == list(expected.tokens)
        for name in ("weights", "total_weight", "token_share"):
            assert np.array_equal(getattr(found[side], name), getattr(expected, name))
    assert load(path, "model 0.9") is None
    path.write_bytes(path.read_bytes()[:100])
    assert load(path, "model 0.8") is None


@pytest.mark.parametrize("kind", ["openai", "scripted"])
def test_engine_without_a_checkpoint_is_refused(kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"large_engine={kind} has no checkpoint"):
        HeadReader(EngineConfig("large", kind, "somewhere"))
