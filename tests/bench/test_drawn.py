"""Documents with drawn charts."""

import io
from pathlib import Path

import pytest
from PIL import Image

from lmms_eval_mai.bench.drawn import HOME, Charts, size_of


@pytest.mark.parametrize(("megapixels", "side"), [(0.26, 512), (1, 992), (0.0001, 64)])
def test_images_have_about_the_given_size_in_whole_image_tokens(megapixels: float, side: int) -> None:
    assert size_of(megapixels) == (side, side)
    (file,) = Charts.draw(1, megapixels).files
    assert Image.open(io.BytesIO(file)).size == (side, side)


def test_each_chart_is_different_and_drawn_alike_each_time() -> None:
    charts = Charts.draw(20, 0.004)
    assert len(set(charts.files)) == 20 and Charts.draw(20, 0.004) == charts
    assert Charts.draw(3, 0.004).files == charts.files[:3]


@pytest.mark.slow
def test_the_written_data_set_has_the_same_documents(tmp_path: Path) -> None:
    from datasets import load_dataset

    charts = Charts.draw(3, 0.004)
    charts.write(tmp_path)
    loaded = load_dataset(str(tmp_path / HOME), cache_dir=str(tmp_path / "cache"))["test"]
    assert len(loaded) == 3
    for number, document in enumerate(loaded):
        expected = charts[number]
        assert document["image"].tobytes() == expected["image"].tobytes()
        assert (document["question"], document["answer"]) == (expected["question"], expected["answer"])
