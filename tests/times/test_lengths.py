"""Forced output lengths and exits: those of the paper's benchmarks."""

from collections import Counter
from statistics import fmean

import pytest

from lmms_eval_mai.contract import Side, Stage
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.sample import EXITS
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.times.lengths import DISAGREEING, Plan, benchmark_of, make_plan

BENCHMARKS = list(paper_numbers.load()["benchmarks"])


def tokens(plan: Plan, side: Side, stage: Stage, disagreeing: bool | None = None) -> list[int]:
    """Return the planned tokens of one kind of call; of the documents whose short answers (dis)agree, if given."""
    return [
        step.tokens
        for (doc_id, *key), step in plan.steps.items()
        if key == [side, stage] and disagreeing in (None, plan.exits[doc_id] != "agree_short")
    ]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
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


@pytest.mark.parametrize("benchmark", DISAGREEING)
def test_thinking_is_longer_where_the_short_answers_disagree(benchmark: str) -> None:
    plan = make_plan(benchmark, 200)
    assert fmean(tokens(plan, "small", "think", disagreeing=True)) == pytest.approx(DISAGREEING[benchmark], rel=0.01)
    shorter = tokens(plan, "small", "think", disagreeing=False)
    assert fmean(shorter) < DISAGREEING[benchmark] and min(shorter) >= 8


def test_a_plan_is_the_same_each_time_and_has_whole_proportions_for_few_documents() -> None:
    plan = make_plan("chartqa", 25)
    assert plan == make_plan("chartqa", 25)
    assert Counter(plan.exits) == {"agree_short": 18, "agree_think": 2, "transfer": 5}


@pytest.mark.parametrize("lengths", ["paper:chartqu", "chartqa", "paper"])
def test_unknown_lengths_are_refused_with_all_choices(lengths: str) -> None:
    with pytest.raises(
        ArgumentError, match=f"--lengths {lengths} is unknown: choose one of own, paper:.*paper:chartqa"
    ):
        benchmark_of(lengths)
    assert (benchmark_of("own"), benchmark_of("paper:chartqa")) == (None, "chartqa")
