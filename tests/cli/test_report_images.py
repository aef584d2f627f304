"""`lmms-eval-mai report --images`: the images of the documents, from the task of a run."""

from pathlib import Path

import pytest
from pyarrow import parquet
from support.folders import Answers, World

from lmms_eval_mai.cli.report_images import load_images
from lmms_eval_mai.plugin import task_dir
from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.evidence import Evidence

pytestmark = pytest.mark.slow


def evidence(golds: list[str], folder: Path, benchmark: str = "shapes") -> Evidence:
    World(benchmark, [Answers(gold, gold, gold, gold, gold) for gold in golds]).write(folder, "cascade")
    return build.evidence([folder])[0]


@pytest.fixture(scope="module")
def golds() -> list[str]:
    """The right answers of the first documents of shapes."""
    file = task_dir() / "shapes" / "test.parquet"
    return list(parquet.read_table(file, columns=["answer"])["answer"].to_pylist()[:5])


def test_each_document_gets_the_image_of_its_task(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence(golds, tmp_path))
    assert images.gaps == []
    assert sorted(images.of["shapes"]) == [0, 1, 2, 3, 4] and len(images.data) == 5


def test_a_run_on_another_data_set_gets_no_images_and_a_sentence(golds: list[str], tmp_path: Path) -> None:
    images = load_images(evidence([*golds[:4], "something else"], tmp_path))
    assert images.gaps == ["shapes has no images: document 4 of task shapes_s has another gold answer than in the run."]


def test_a_task_that_cannot_be_loaded_is_a_sentence(tmp_path: Path) -> None:
    images = load_images(evidence(["yes"], tmp_path, "unknown"))
    assert len(images.gaps) == 1 and images.gaps[0].startswith(
        "unknown has no images: unknown_s is unknown to lmms-eval."
    )
