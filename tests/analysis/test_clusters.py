"""Documents that share an image are resampled together."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE, Answers, World, pope_world
from support.tables import report, row_of, value

from lmms_eval_mai.analysis.intervals import Estimate
from lmms_eval_mai.analysis.report import Report
from lmms_eval_mai.analysis.runs.runs import Runs


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """Reports of 50 documents, of four copies of each with a common image, and of the copies without images."""
    found = []
    for copies, images in ((1, False), (4, True), (4, False)):
        documents = [
            dataclasses.replace(one, images=(f"image {number}",) if images else ())
            for number, one in enumerate(pope_world(50).documents)
            for _ in range(copies)
        ]
        folder = tmp_path_factory.mktemp("runs")
        World("pope", documents).write(folder, "mai")
        World("pope", documents).write(folder, "small", "r", time="20260102_000000")
        found.append(report([folder], ("10",)))
    return found


def test_copies_of_documents_with_a_common_image_have_the_intervals_and_p_of_the_documents(
    reports: list[Report],
) -> None:
    rows = [row_of(found.table("differences"), "POPE", "MAI", "small R") for found in reports]
    single, images, no_images = rows
    assert [row["n"] for row in rows] == [50, 200, 200] and images["only this"] == 4 * single["only this"]
    assert images["p"] == single["p"] > 3 * no_images["p"]
    tens = [row_of(found.table("table-10"), "POPE", "MAI") for found in reports]
    for of, column in ((rows, "difference"), (tens, "score"), (tens, "transfer")):
        expected, wide, narrow = (row[column] for row in of)
        assert value(wide) == pytest.approx(value(expected)) == value(narrow)
        assert width(wide) > 1.8 * width(narrow), column
        # Wilson's interval of a share of single documents is not that of the bootstrap.
        assert width(wide) == pytest.approx(width(expected), rel=0.1 if column == "transfer" else 1e-9)


def width(cell: Any) -> float:
    assert isinstance(cell, Estimate) and cell.low is not None and cell.high is not None
    return cell.high - cell.low


def test_a_report_says_once_what_was_resampled(reports: list[Report]) -> None:
    _, images, no_images = reports
    for found, words in ((images, "200 documents in 50 clusters"), (no_images, "too narrow")):
        assert len([gap for gap in found.gaps if gap.startswith("POPE: ") and words in gap]) == 1


def test_documents_are_joined_by_common_images_and_by_rotations_of_a_question(tmp_path: Path) -> None:
    indices = {3: 7, 4: 1_000_007}
    documents = [
        Answers(
            *"AAAAA", images=(*images,), fields=(("gpt_eval_score", {"index": indices[n]}),) if n in indices else ()
        )
        for n, images in enumerate(("a", "ab", "b", "c", ""))
    ]
    World("t", documents).write(tmp_path, "large", "")
    runs = Runs.read([tmp_path])
    assert list(runs.clusters("t")) == [0, 0, 0, 1, 1]  # type: ignore[arg-type]
    documents = [dataclasses.replace(one, images=(f"{n}",)) for n, one in enumerate(POPE.documents)]
    World("pope", documents).write(tmp_path / "single", "large")
    assert Runs.read([tmp_path / "single"]).clusters("pope") is None
    assert not [gap for gap in report([tmp_path / "single"], ()).gaps if "resample" in gap]
