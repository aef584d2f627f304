"""What a report says first: which methods no other one beats in both score and price."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.folders import Answers, World
from support.tables import report

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.verdict import Priced, unbeaten, verdict

METHODS = (
    ("mai", "s"),
    ("mai_confidence", "s"),
    ("own_thinking", "s"),
    ("full_rt", "s"),
    ("large", "r"),
    ("large", "s"),
    ("small", "s"),
)


def world(rates: list[float], seed: int, number: int = 200) -> World:
    """Return questions whose answers are right at these rates: small and large S, small R, the transfer, large R."""
    chance = random.Random(seed)

    def answers() -> Answers:
        gold, *others = (chance.choice(["red", "blue", "green"]) for _ in range(6))
        right = (gold if chance.random() < rate else other for rate, other in zip(rates, others, strict=True))
        return dataclasses.replace(Answers(gold, *right), probability=round(chance.uniform(0.2, 1), 3))

    return World("shapes", [answers() for _ in range(number)], small="org/tiny", large="org/big", min_confidence=0.7)


def write(one: World, folder: Path, is_shared: bool = False) -> Runs:
    """Write a run of each method. `is_shared`: whether another run has made one of the calls."""
    for number, (method, suffix) in enumerate(METHODS):
        one.write(folder, method, suffix, time=f"20260101_00000{number}")
    if is_shared:
        file = next(folder.glob("*_samples_*"))
        file.write_text(file.read_text().replace('"total_s"', '"shared": true, "total_s"', 1))
    return Runs.read([folder])


def lines_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each run by the name of its method in a report."""
    names = {"mai": "MAI", "mai_confidence": "MAI by confidence", "own_thinking": "own thinking", "full_rt": "Full RT"}
    found = {}
    for file in folder.glob("*_samples_*"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        method = lines[0]["token_counts"][0]["method"]
        found[names.get(method, f"{method} {file.stem[-1].upper()}")] = lines
    return found


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rates=st.lists(st.sampled_from([0.1, 0.5, 0.8, 0.95, 1.0]), min_size=5, max_size=5), seed=st.integers(0, 99))
def test_a_method_that_another_one_dominates_is_never_named_as_unbeaten(
    tmp_path_factory: pytest.TempPathFactory, rates: list[float], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    one = world(rates, seed, number=120)
    for sentence in verdict(write(one, folder, is_shared=True)):
        lines = lines_of(folder)
        costs, right = {}, {}
        for name, run in lines.items():
            calls = [call for line in run for call in line["token_counts"][0]["calls"]]
            costs[name] = sum(call["output_tokens"] for call in calls if call["side"] == "large") / len(run)
            right[name] = [line["score"] for line in run]
        named = sentence.partition("no method beats ")[2].partition(": none")[0]
        best = [
            name for name in lines if f"{name} ({sum(right[name]) / 1.2:.1f}% for {costs[name]:.1f} tokens)" in named
        ]
        assert best
        for name in best:
            for other in lines:
                more = sum(a > b for a, b in zip(right[other], right[name], strict=True))
                less = sum(a < b for a, b in zip(right[other], right[name], strict=True))
                p = stats.binomtest(more, more + less).pvalue if more + less else 1.0
                # Here p is not adjusted: clearly better at the same price or less, or not worse for much less.
                is_better = p < 0.05 / len(METHODS) and more > less and costs[other] <= costs[name]
                is_cheaper = more >= less and costs[other] * 1.1 < costs[name]
                assert not is_better and not is_cheaper, (name, other)


def priced(name: str, score: float, price: float, **differences: float) -> Priced:
    return Priced(name, score, price, differences=differences)


def test_equal_scores_leave_the_cheapest_and_prices_within_10_percent_the_best() -> None:
    cheap, dear = priced("cheap", 80, 10, dear=0), priced("dear", 81, 12, cheap=0)
    assert unbeaten([cheap, dear]) == [cheap]
    equal = priced("equal", 81, 10.9, cheap=0)
    assert equal in unbeaten([priced("cheap", 80, 10, equal=0), equal])
    better = priced("better", 90, 10.9, cheap=10)
    assert unbeaten([priced("cheap", 80, 10, better=-10), better]) == [better]
    dearer = priced("better", 90, 11.1, cheap=10)
    assert len(unbeaten([priced("cheap", 80, 10, better=-10), dearer])) == 2


GOOD = [0.3, 0.7, 0.8, 0.9, 1.0]


def test_the_price_is_the_seconds_if_all_runs_have_made_their_own_calls(tmp_path: Path) -> None:
    (sentence,) = verdict(write(world(GOOD, 1), tmp_path / "own"))
    assert "seconds for a question" in sentence
    (sentence,) = verdict(write(world(GOOD, 1), tmp_path / "shared", is_shared=True))
    assert "tokens of the large model" in sentence


def test_nothing_is_said_if_few_documents_decide_or_a_baseline_is_missing(tmp_path: Path) -> None:
    assert not [*verdict(write(world(GOOD, 1, number=12), tmp_path / "few"))]
    world(GOOD, 1).write(tmp_path / "alone", "mai")
    assert not [*verdict(Runs.read([tmp_path / "alone"]))]
    write(world(GOOD, 1), tmp_path / "all")
    found = report([tmp_path / "all"], ())
    assert len(found.sentences) == 1


def test_the_exit_at_which_mai_loses_is_told_against_a_baseline_that_has_all_documents(tmp_path: Path) -> None:
    runs = write(world(GOOD, 1), tmp_path)
    (sentence,) = verdict(runs)
    assert ", large R 100.0%." in sentence
    (large_r,) = (file for file in tmp_path.glob("*_samples_shapes_r.jsonl"))
    large_r.write_text("".join(large_r.read_text().splitlines(keepends=True)[:100]))
    (sentence,) = verdict(Runs.read([tmp_path]))
    loss = sentence.partition("loses most")[2]
    assert "large R" not in loss, sentence
