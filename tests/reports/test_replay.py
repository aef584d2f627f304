"""The published POPE answers of LLaVA-1.5 7B and 13B, 9,000 each, as output folders: the report against an independent
computation. The thinking was not published: each model repeats its answer."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

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
        found.append(Answers(one["gold"].lower(), a, b, a, b))
    return found


def f1(predictions: list[str], golds: list[str]) -> float:
    pairs = Counter(zip(predictions, golds, strict=True))
    return 200 * pairs["yes", "yes"] / (2 * pairs["yes", "yes"] + pairs["yes", "no"] + pairs["no", "yes"])


@pytest.mark.slow
def test_report_of_9000_documents_matches_an_independent_computation(answers: list[Answers], tmp_path: Path) -> None:
    world = World("pope", answers, small=SMALL, large=LARGE)
    for mode in ("cascade", "transfer", "small"):
        world.write(tmp_path / mode, mode)
    found = report([tmp_path])

    golds = [one.gold for one in answers]
    agreeing = sum(one.small == one.large for one in answers)
    assert len(answers) == 9000 and 8000 < agreeing < 9000
    row = row_of(found.table("table-10"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R")
    assert [row[f"{exit}, documents"] for exit in ("agree_short", "agree_think", "transfer")] == [
        agreeing,
        0,
        9000 - agreeing,
    ]
    for column, predictions in {
        "MAI": [one.large for one in answers],  # agreement, or the large model's repeated answer
        "small S": [one.small for one in answers],
        "large S": [one.large for one in answers],
        "Full RT": [one.large for one in answers],
    }.items():
        assert value(row[column]) == pytest.approx(f1(predictions, golds)), column

    (compared,) = [row for row in found.table("mai-against-others").rows if row[2] == "llava-v1.5-7b-S"]
    only_mai = sum(one.large == one.gold != one.small for one in answers)
    only_small = sum(one.small == one.gold != one.large for one in answers)
    assert compared[7:9] == (only_mai, only_small)
    least, number = min(only_mai, only_small), only_mai + only_small
    tail = sum(math.comb(number, k) for k in range(least + 1)) / 2**number
    assert compared[9] == pytest.approx(min(1.0, 2 * tail))
    difference = compared[6]
    assert isinstance(difference, Estimate)
    expected = f1([one.large for one in answers], golds) - f1([one.small for one in answers], golds)
    assert difference.value == pytest.approx(expected)

    methods = row_of(found.table("methods"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R")
    assert methods["small tokens"] == pytest.approx(4 + 100 * (9000 - agreeing) / 9000)
    agreement = row_of(found.table("agreement"), "POPE", "MAI llava-v1.5-13b + llava-v1.5-7b-R", "short")
    both_wrong = sum(one.small == one.large != one.gold for one in answers)
    assert value(agreement["agree and wrong, %"]) == pytest.approx(100 * both_wrong / 9000)
    assert not [json.dumps(cell) for table in found.tables for cell in table.compared()]  # other models
