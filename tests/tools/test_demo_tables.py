"""The tables of the demo pair's measurement in the documentation."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))

import demo_tables  # noqa: E402

FIGURES = demo_tables.load()


def test_a_goal_is_missed_or_reached_as_the_figures_say() -> None:
    changed: dict[str, Any] = copy.deepcopy(FIGURES)
    for name, (value, low, high) in FIGURES["gains"].items():
        changed["gains"][name] = [-value, -high, -low]
    changed["exits"] = {"agree_short": 0.4, "agree_think": 0.2, "transfer": 0.4}
    changed["ratios"] = {name: 1.6 - ratio for name, ratio in FIGURES["ratios"].items()}
    changed["harm"]["MAI"] |= {"rescued": 30, "broken": 10}
    before, after = demo_tables.goals(FIGURES), demo_tables.goals(changed)
    assert len(before) == 15
    for one, other in zip(before, after, strict=True):
        assert one[0] == other[0] and {one[-1], other[-1]} == {"reached", "**missed**"}, (one, other)


def test_the_tables_agree_with_each_other() -> None:
    documents = FIGURES["samples"]
    assert sum(FIGURES["documents"].values()) == sum(demo_tables.exits(FIGURES).values()) == documents
    right = {method: sum(kinds.values()) for method, kinds in FIGURES["by_kind"].items()}
    for method, accuracy in FIGURES["accuracy"].items():
        assert accuracy == pytest.approx(100 * right[method] / documents, abs=1e-3)
        assert FIGURES["intervals"][method][0] < accuracy < FIGURES["intervals"][method][1]
    for name, (points, _, _) in FIGURES["gains"].items():
        better, worse = name.split(" - ")
        assert points == pytest.approx(100 * (right[better] - right[worse]) / documents, abs=1e-3)
    harm = FIGURES["harm"]["MAI"]
    assert harm["was_right"] + harm["was_wrong"] == demo_tables.exits(FIGURES)["transfer"]
    assert right["MAI"] - right["large S"] == harm["rescued"] - harm["broken"]
