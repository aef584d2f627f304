"""The images of the page, from the data sets of the tasks."""

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pyarrow import parquet
from support.folders import Answers, World

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables import thumbnails
from lmms_eval_mai.analysis.tables.thumbnails import load_images
from lmms_eval_mai.plugin import task_dir


def runs(golds: list[str], folder: Path) -> Runs:
    World("shapes", [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "mai")
    return Runs.read([folder])


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


def test_each_document_gets_the_image_of_its_task_until_the_bytes_are_used(
    golds: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    told: list[str] = []
    finished = runs(golds, tmp_path)
    images = load_images(finished, told.append)["shapes"]
    assert [*images] == [0, 1, 2, 3, 4] and len(set(images.values())) == 5
    assert max(Image.open(io.BytesIO(base64.b64decode(images[0]))).size) <= thumbnails.SIDE
    assert told == []
    monkeypatch.setattr(thumbnails, "BYTES", len(images[0]) + len(images[1]))
    assert [*load_images(finished, told.append)["shapes"]] == [0, 1]
    assert told == ["shapes: 2 of 5 documents have an image in the page."]


def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    told: list[str] = []
    assert load_images(runs([*golds[:4], "something else"], tmp_path), told.append) == {}
    assert "document 4 of task shapes_s has another gold answer than in the run." in told[0]
