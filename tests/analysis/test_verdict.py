"""What a report says first: which methods no other one beats in both score and price."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from support.folders import RUNS, World, edit, shapes_world, write_all
from support.pair import Answers
from support.tables import report

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.summary import comparisons
from lmms_eval_mai.analysis.tables.verdict import Priced, unbeaten, verdict

METHODS = {name: RUNS[name] for name in ("MAI", "Full RT", "large R", "large S", "small S")}
METHODS |= {"MAI by confidence": ("mai_confidence", "s"), "own thinking": ("own_thinking", "s")}
"""Name in a report -> method and suffix of the task."""


def write(one: World, folder: Path, is_shared: bool = False) -> Runs:
    """Write a run of each method. `is_shared`: whether another run has made one of the calls."""
    write_all(one, folder, METHODS.values())
    if is_shared:
        edit(folder, lambda line, _: line["token_counts"][0]["calls"][0].update(shared=True), "20260101_000000")
    return Runs.read([folder])


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rates=st.lists(st.sampled_from([0.1, 0.5, 0.8, 0.95, 1.0]), min_size=5, max_size=5), seed=st.integers(0, 99))
def test_a_method_that_another_one_dominates_is_never_named_as_unbeaten(
    tmp_path_factory: pytest.TempPathFactory, rates: list[float], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    one = shapes_world(rates, seed, number=120)
    for sentence in verdict(write(one, folder, is_shared=True))[0]:
        costs, right = {}, {}
        for name, run in METHODS.items():
            traces = one.traces(*run)
            calls = [call for trace in traces for call in trace.calls]
            costs[name] = sum(call.output_tokens for call in calls if call.key.side == "large") / len(traces)
            right[name] = [trace.text == document.gold for trace, document in zip(traces, one.documents, strict=True)]
        named = sentence.partition("no method beats ")[2].partition(": none")[0]
        shown = {name: f"{name} ({sum(right[name]) / 1.2:.1f}% for {costs[name]:.1f} tokens)" for name in METHODS}
        best = [name for name in METHODS if shown[name] in named]
        assert best
        for name in best:
            for other in METHODS:
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


GOOD = shapes_world([0.3, 0.7, 0.8, 0.9, 1.0], seed=1, number=200)


def said(runs: Runs) -> str:
    (sentence,), missing = verdict(runs)
    assert not missing
    return sentence


@pytest.mark.slow
def test_the_price_is_the_seconds_if_all_runs_have_made_their_own_calls_with_as_many_at_a_time(tmp_path: Path) -> None:
    """Else it is the tokens of the large model."""
    assert "seconds for a document" in said(write(GOOD, tmp_path / "own"))
    assert "tokens of the large model" in said(write(GOOD, tmp_path / "shared", is_shared=True))

    def use_vllm(line: dict[str, Any], _: int) -> None:
        line["token_counts"][0]["engines"]["large"] = "vllm"

    def ask_in_turn(line: dict[str, Any], number: int) -> None:
        for call in line["token_counts"][0]["calls"]:
            call["started_at"] = number

    for change in use_vllm, ask_in_turn:
        write(GOOD, tmp_path / change.__name__)
        edit(tmp_path / change.__name__, change, "20260101_000002")  # large R
        assert "tokens of the large model" in said(Runs.read([tmp_path / change.__name__]))


def test_differences_are_told_apart_by_the_adjusted_p(tmp_path: Path) -> None:
    """On 6 of 200 documents, only those that think are right: p of one comparison is 0.031."""
    red = Answers("red", "red", "red", "red", "red", "red")
    doubted = dataclasses.replace(red, small="blue", large="blue")
    one = World("shapes", [red] * 194 + [doubted] * 6, small="org/tiny", large="org/big", min_confidence=0.7)
    runs = write(one, tmp_path)
    p = {(runs.name(row.run.setup), runs.name(row.other.setup)): row for row in comparisons(runs, "shapes")}
    row = p["MAI", "Full RT"]
    assert row.comparison.p == pytest.approx(0.03125) and row.adjusted_p > 0.05
    assert "points better" not in said(runs)


@pytest.mark.slow
def test_why_nothing_is_said(tmp_path: Path) -> None:
    write(dataclasses.replace(GOOD, documents=GOOD.documents[:12]), tmp_path / "few")
    GOOD.write(tmp_path / "alone", "mai")
    write(GOOD, tmp_path / "pairs")
    dataclasses.replace(GOOD, small="org/other").write(tmp_path / "pairs", "mai", time="20260102_000000")
    for folder, why in ("few", "too few documents"), ("alone", "large R"), ("pairs", "pairs of models"):
        found = report([tmp_path / folder], ())
        assert not found.sentences
        assert why in " ".join(found.gaps)


def test_a_run_on_other_documents_is_left_out(tmp_path: Path) -> None:
    assert "large R" in said(write(GOOD, tmp_path))
    (large_r,) = (file for file in tmp_path.glob("*_samples_shapes_r.jsonl"))
    large_r.write_text("".join(large_r.read_text().splitlines(keepends=True)[:100]))
    assert "large R" not in said(Runs.read([tmp_path]))
