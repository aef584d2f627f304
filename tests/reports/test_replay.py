"""The published POPE answers of LLaVA-1.5 7B and 13B, 9,000 each, as output folders: the report against an independent
computation. The thinking was not published: each model repeats its answer."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.folders import Answers, World
from support.published import replay
from support.tables import row_of, value

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.report import Estimate

SMALL, LARGE = "liuhaotian/llava-v1.5-7b", "liuhaotian/llava-v1.5-13b"
Key = tuple[str, str, str]


def key_of(record: dict[str, Any]) -> Key:
    found = re.fullmatch(r"Is there an? (.+) in the iman?ge\?", record["question"])
    assert found, record
    return record["category"], record["image"], found.group(1)


@pytest.fixture(scope="module")
def answers(shared: Path) -> list[Answers]:
    """The answers to all documents that both files have."""
    small = {key_of(one): one for one in replay(shared, "pope__llava-v1.5-7b_greedy")}
    large = {key_of(one): one["response"].lower() for one in replay(shared, "pope__llava-v1.5-13b")}
    found = []
    for key, one in small.items():
        a, b = one["response"].lower(), large.get(key, "")
        found.append(Answers(one["gold"].lower(), a, b, a, b, fields=(("images", [key[1]]),)))
    return found


def f1(counts: np.ndarray) -> np.ndarray:
    """Return F1 in percent from true positives, false positives and false negatives. Shape: ... x 3."""
    right, wrong, missed = np.moveaxis(counts, -1, 0)
    return 200 * right / (2 * right + wrong + missed)


def of_images(answers: list[Answers], model: str) -> np.ndarray:
    """Return the counts of one model on each image. Shape: images x 3."""
    found: dict[str, np.ndarray] = {}
    for one in answers:
        said = getattr(one, model)
        one_document = [said == one.gold == "yes", said == "yes" != one.gold, said == "no" != one.gold]
        image = dict(one.fields)["images"][0]
        found[image] = found.get(image, np.zeros(3)) + one_document
    return np.array(list(found.values()))


@pytest.mark.slow
def test_report_of_9000_documents_matches_an_independent_computation(answers: list[Answers], tmp_path: Path) -> None:
    world = World("pope", answers, small=SMALL, large=LARGE)
    for mode in ("cascade", "transfer", "small"):
        world.write(tmp_path / mode, mode)
    found = report([tmp_path])

    small, large = of_images(answers, "small"), of_images(answers, "large")
    agreeing = sum(one.small == one.large for one in answers)
    assert len(answers) == 9000 and 8000 < agreeing < 9000 and len(small) == 500
    row = row_of(found.table("table-10"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R")
    assert [row[f"{exit}, documents"] for exit in ("agree_short", "agree_think", "transfer")] == [
        agreeing,
        0,
        9000 - agreeing,
    ]
    # MAI: agreement, or the large model's repeated answer.
    for column, counts in {"MAI": large, "small S": small, "large S": large, "Full RT": large}.items():
        assert value(row[column]) == pytest.approx(f1(counts.sum(axis=0))), column

    # Intervals and p are those of whole images.
    random = np.random.default_rng(0)
    drawn = random.integers(0, 500, (2000, 500))
    score = row["MAI"]
    assert isinstance(score, Estimate)
    ends = np.quantile(f1(large[drawn].sum(axis=1)), [0.025, 0.975])
    assert [score.low, score.high] == pytest.approx(ends, abs=0.12)

    (compared,) = [row for row in found.table("mai-against-others").rows if row[2] == "llava-v1.5-7b-S"]
    difference = compared[6]
    assert isinstance(difference, Estimate)
    seen = float(f1(large.sum(axis=0)) - f1(small.sum(axis=0)))
    assert difference.value == pytest.approx(seen)
    ends = np.quantile(f1(large[drawn].sum(axis=1)) - f1(small[drawn].sum(axis=1)), [0.025, 0.975])
    assert [difference.low, difference.high] == pytest.approx(ends, abs=0.12)
    swapped = random.random((2000, 500, 1)) < 0.5
    differences = f1(np.where(swapped, small, large).sum(axis=1)) - f1(np.where(swapped, large, small).sum(axis=1))
    assert compared[9] == pytest.approx((abs(differences) >= abs(seen)).mean(), abs=0.01)
    only_mai = sum(one.large == one.gold != one.small for one in answers)
    only_small = sum(one.small == one.gold != one.large for one in answers)
    assert compared[7:9] == (only_mai, only_small)

    methods = row_of(found.table("methods"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R")
    assert methods["small output tokens"] == pytest.approx(4 + 100 * (9000 - agreeing) / 9000)
    agreement = row_of(found.table("agreement"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R", "short", "all kinds")
    assert agreement["errors accepted"] == sum(one.small == one.large != one.gold for one in answers)
    assert not [cell for table in found.tables for cell in table.compared()]  # other models
