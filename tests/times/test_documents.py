"""Documents with drawn charts."""

import io
from pathlib import Path

import pytest
from PIL import Image

from lmms_eval_mai.cli.task_documents import TaskDocuments
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.times.documents import CHARTS, Documents, draw_chart, side_of, write_charts
from lmms_eval_mai.times.lengths import make_plan


@pytest.mark.parametrize(("megapixels", "side"), [(0.26, 512), (1, 992), (0.0001, 64)])
def test_images_have_about_the_given_size_in_whole_image_tokens(megapixels: float, side: int) -> None:
    assert side_of(megapixels) == side
    assert Image.open(io.BytesIO(draw_chart(side, "seed"))).size == (side, side)


def test_each_chart_is_different_and_drawn_alike_each_time() -> None:
    charts = [draw_chart(64, f"chart {number}") for number in range(20)]
    assert len(set(charts)) == 20 and charts[:3] == [draw_chart(64, f"chart {number}") for number in range(3)]


@pytest.mark.slow
def test_drawn_charts_are_a_task_with_the_reasoning_prompt_of_chartqa(tmp_path: Path) -> None:
    write_charts(tmp_path, 3, 0.004)
    source = TaskDocuments(CHARTS, 2, {}, str(tmp_path))
    sample = source.open(1, parse({"pair": "demo"}))
    assert (source.numbers, sample.variant, sample.benchmark.name) == ([0, 1], "R", "chartqa")
    (image, text) = sample.question[0].content
    assert not isinstance(image, str) and "bar 2" in str(text)
    assert image.pixels.tobytes() == Image.open(io.BytesIO(draw_chart(64, "chart 1"))).convert("RGB").tobytes()
    documents = Documents(source, 2, make_plan("chartqa", 2), {"pair": "demo"})
    assert documents.facts() == {"documents": 2, "images_px": [[64, 64]], "exits": {"agree_short": 2}}
    assert documents.open(1).benchmark.name == "chartqa" and documents.first(1).count == 1
