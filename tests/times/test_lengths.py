"""Forced output lengths and exits, and the documents of a bench."""

import io
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.harness.documents import TaskDocuments
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.times.documents import (
    CHARTS,
    DISAGREEING,
    Documents,
    Plan,
    draw_chart,
    make_plan,
    side_of,
    write_charts,
)


def tokens(plan: Plan, side: Side, stage: Stage, disagreeing: bool | None = None) -> list[int]:
    """Return the planned tokens of one kind of call; of the documents whose short answers (dis)agree, if given."""
    return [
        step.tokens
        for (doc_id, *key), step in plan.steps.items()
        if key == [side, stage] and disagreeing in (None, plan.exits[doc_id] != "agree_short")
    ]


@pytest.mark.parametrize("benchmark", paper_numbers.load()["benchmarks"])
def test_lengths_are_those_of_table_5_and_exits_those_of_table_10(benchmark: str) -> None:
    plan = make_plan(benchmark, 200)
    counts = Counter(plan.exits)
    for exit in EXITS["cascade"]:
        share = paper_numbers.number(10, "", benchmark, exit)
        assert share is not None and counts[exit] == pytest.approx(200 * share.value / 100, abs=2)
    for side, name in (("small", "2B"), ("large", "8B")):
        short, thinking = (paper_numbers.number(5, name, benchmark, prompt).value for prompt in "SR")  # type: ignore
        assert fmean(tokens(plan, side, "short")) == pytest.approx(short, rel=0.01)
        assert fmean(tokens(plan, side, "think")) == pytest.approx(thinking, rel=0.01)
    if benchmark in DISAGREEING:
        longer, shorter = (tokens(plan, "small", "think", disagreeing) for disagreeing in (True, False))
        assert fmean(longer) == pytest.approx(DISAGREEING[benchmark], rel=0.01)
        assert fmean(shorter) < DISAGREEING[benchmark] and min(shorter) >= 8


def test_a_plan_is_the_same_each_time_and_has_whole_proportions_for_few_documents() -> None:
    plan = make_plan("chartqa", 25)
    assert plan == make_plan("chartqa", 25)
    assert Counter(plan.exits) == {"agree_short": 18, "agree_think": 2, "transfer": 5}


def test_charts_have_about_the_given_size_in_whole_image_tokens_and_are_drawn_alike_each_time() -> None:
    assert [side_of(megapixels) for megapixels in (0.26, 1, 0.0001)] == [512, 992, 64]
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
