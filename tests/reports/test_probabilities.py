"""The tables of the large model's probabilities, and the mark of a score on documents that chose the threshold."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.folders import Answers, World

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.report import Estimate

WORLD = World(
    "shapes",
    [
        Answers("red", "red", "red", "red", "red", probability=0.995, fields=(("images", ["a"]),)),
        Answers("red", "blue", "blue", "red", "red", probability=0.55, fields=(("images", ["b"]),)),
        Answers("red", "blue", "red", "blue", "red", probability=0.52, fields=(("images", ["c"]),)),
        Answers("red", "red", "blue", "red", "red", probability=0.3, fields=(("images", ["d"]),)),
    ],
)


def value(cell: Any) -> float:
    assert isinstance(cell, Estimate)
    return cell.value


def test_tables_have_auroc_and_the_share_of_right_answers_by_probability(tmp_path: Path, task_manager: Any) -> None:
    WORLD.write(tmp_path, "cascade")
    confident = replace(WORLD, verify="confidence", min_confidence=0.5)  # the same short answers are shown once
    confident.write(tmp_path, "cascade", time="20260102_000000", model_args="verify=confidence,min_confidence=0.5")
    found = report([tmp_path])
    everything, agreed = found.table("probability").rows
    assert (everything[2:4], value(everything[4]), value(everything[6])) == (("all", 4), 50, 75)
    assert agreed[2:4] == ("both short answers agree", 2)
    rows = [(row[2], row[3], value(row[5])) for row in found.table("reliability").rows]
    assert rows == [("0 to 0.5", 1, 0), ("0.5 to 0.6", 2, 50), ("0.99 to 1", 1, 100)]
    (drawn,) = [figure for figure in found.figures if figure.kind == "reliability"]
    assert [(one["n"], one["score"]) for one in drawn.data] == [(1, 0), (2, 50), (1, 100)]
    assert [one["probability"] for one in drawn.data] == pytest.approx([30, 53.5, 99.5])


def test_a_score_on_images_that_chose_the_threshold_is_marked(tmp_path: Path, task_manager: Any) -> None:
    WORLD.write(tmp_path, "cascade", model_args="verify=confidence,min_confidence=file.json")
    file = tmp_path / "20260101_000000_mai_cascade.json"
    figures = json.loads(file.read_text())
    for images, sentence in ((["b", "d", "x"], "2 of the 4 scored answers"), (["x"], None)):
        figures["first_check"] = {"verify": "confidence", "calibration": {"images": images}}
        file.write_text(json.dumps(figures))
        marked = [gap for gap in report([tmp_path]).gaps if "chose its threshold" in gap]
        assert [gap for gap in marked if sentence and sentence in gap] == marked
        assert bool(marked) == (sentence is not None)
