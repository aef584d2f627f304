"""The figures of a run are sums over all its calls, also if its samples are divided among ranks."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from lmms_eval_mai.contract import Call, CallKey, Side, Stage
from lmms_eval_mai.errors import MissingAnswer, PromptTooLong, SampleError
from lmms_eval_mai.paper.sample import EXITS, Trace
from lmms_eval_mai.paper.sparse import Selection
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.figures import SPECULATION, figures
from lmms_eval_mai.run.final_table import table
from lmms_eval_mai.run.metering import RunTotals

TASKS = ("pope_s", "mmmu_val_r")
Outcome = tuple[str, Trace | SampleError]
"""Task and result of a sample."""


def config(**arguments: Any) -> Config:
    return parse({"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl", **arguments})


POSITIONS = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    task = draw(st.sampled_from(TASKS))
    if draw(st.integers(0, 5)) == 0:
        return task, draw(st.sampled_from([MissingAnswer("no answer."), PromptTooLong("too long.")]))
    keys = draw(st.sets(st.tuples(st.sampled_from(get_args(Side)), st.sampled_from(get_args(Stage))), min_size=1))
    count = st.integers(0, 5000)
    calls = tuple(
        # Quarters of a second, so that the order of an addition does not change the sum.
        Call(
            CallKey(task, 0, 0, side, stage),
            "",
            "stop",
            draw(count),
            draw(count),
            draw(count),
            0,
            0,
            draw(count) / 4,
            answer_tokens=draw(st.none() | count),
            shared=draw(st.booleans()),
            **(dict.fromkeys(SPECULATION, draw(count)) if side == "large" else {}),
        )
        for side, stage in keys
    )
    selection = draw(st.none() | st.builds(Selection, POSITIONS, count, st.just(0.5), st.just(""), count, count))
    exit, readable = draw(st.sampled_from(EXITS["cascade"])), draw(st.booleans())
    return task, Trace(exit, calls[0], calls, (), readable=readable, selection=selection)


def totals_of(some: Iterable[Outcome]) -> RunTotals:
    found = RunTotals()
    for number, (task, outcome) in enumerate(some):
        if isinstance(outcome, Trace):
            found.meter.add(outcome)
        else:
            found.meter.add_error((task, number, 0), outcome)
    return found


def sums(calls: Collection[Call]) -> dict[str, float | None]:
    found: dict[str, Any] = {
        "calls": 0,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "call_seconds": 0.0,
    }
    answer_tokens = [call.answer_tokens for call in calls]
    found["answer_tokens"] = None if None in answer_tokens else sum(filter(None, answer_tokens))
    if calls and all(call.target_calls is not None for call in calls):
        found["target_calls"] = sum(call.target_calls or 0 for call in calls)
    if shared := sum(call.shared for call in calls):
        found["shared_calls"] = shared
    for call in calls:
        found["calls"] += 1
        found["call_seconds"] += call.total_s
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            found[name] += getattr(call, name)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(outcomes(), max_size=12), st.integers(1, 3))
def test_every_figure_is_the_sum_over_the_traces_of_all_ranks(some: list[Outcome], ranks: int) -> None:
    totals = RunTotals.of_ranks([totals_of(some[rank::ranks]) for rank in range(ranks)])
    found = figures(totals, replace(config(), transfer="sparse"), {})
    assert found["ranks"] == ranks
    errors = Counter(type(outcome).__name__ for _, outcome in some if isinstance(outcome, SampleError))
    assert (found["not_answered"], found["errors"]) == (errors.total(), dict(errors))
    assert found["samples"] == len(some) - errors.total()
    assert found["tasks"].keys() == {task for task, _ in some}
    for task, one in found["tasks"].items():
        traces = [outcome for name, outcome in some if name == task and isinstance(outcome, Trace)]
        assert one["samples"] == len(traces)
        assert one["not_answered"] == sum(name == task for name, _ in some) - len(traces)
        assert one["unreadable"] == sum(not trace.readable for trace in traces)
        assert one["exits"] == {exit: sum(trace.exit == exit for trace in traces) for exit in EXITS["cascade"]}
        selections = [trace.selection for trace in traces if trace.selection is not None]
        assert one["selections"] == {
            "transfers": len(selections),
            "scored_tokens": sum(selection.scored_tokens for selection in selections),
            "kept_tokens": sum(len(selection.positions) for selection in selections),
            "transferred_tokens": sum(selection.transferred_tokens or 0 for selection in selections),
            "empty": sum(selection.positions == () for selection in selections),
        }
        for side in get_args(Side):
            calls = [call for trace in traces for call in trace.calls if call.key.side == side]
            of_side = dict(one[side])
            stages = of_side.pop("stages")
            assert sums(calls).items() <= of_side.items()
            assert of_side.keys() & SPECULATION == (set(SPECULATION) if "target_calls" in sums(calls) else set())
            assert stages.keys() == {call.key.stage for call in calls}
            for stage, usage in stages.items():
                assert sums([call for call in calls if call.key.stage == stage]).items() <= usage.items()


def test_figures_name_the_arguments_of_sparse_transfer_and_those_of_full_transfer_have_none() -> None:
    sparse = replace(config(), transfer="sparse", sparse_layer=0.33)
    totals = totals_of([("pope_s", MissingAnswer("no answer."))])
    found = figures(totals, sparse, {})
    assert (found["transfer"], found["sparse_layer"], found["sparse_from"]) == ("sparse", 0.33, "large")
    full = figures(totals, config(), {})
    assert (
        not any("sparse" in name or name == "transfer" for name in full) and "selections" not in full["tasks"]["pope_s"]
    )


def test_slowest_rank_decides_the_wall_time_of_the_run_and_of_each_task() -> None:
    ranks = []
    for walls, earlier in (({"pope_s": 3.0, "mmmu_val_r": 1.0}, 0.5), ({"pope_s": 1.0, "mmmu_val_r": 2.5}, 2.0)):
        one = RunTotals(wall_s=sum(walls.values()), earlier_s=earlier)
        for task, wall_s in walls.items():
            one.meter.task(task).wall_s = wall_s
        ranks.append(one)
    found = RunTotals.of_ranks(ranks)
    assert (found.wall_s, found.earlier_s) == (4.0, 2.0)
    assert {name: task.wall_s for name, task in found.meter.tasks.items()} == {"pope_s": 3.0, "mmmu_val_r": 2.5}
    text = table(found, config())
    assert "Wall time 4.0 s, 2.0 s of it before this start: mmmu_val_r 2.5 s, pope_s 3.0 s." in text
    assert ", 2 ranks\n" in text


def test_failures_of_all_ranks_are_grouped_by_cause() -> None:
    ranks = []
    for rank in range(3):
        one = RunTotals()
        for number in range(rank, 12, 3):
            one.meter.add_error(("pope_s", number, 0), MissingAnswer(f"no answer to document {number}."))
        ranks.append(one)
    ranks[2].meter.add_error(("pope_s", 12, 0), PromptTooLong("too long."))
    first, second = str(RunTotals.of_ranks(ranks).meter.failures).splitlines()
    assert first.startswith(
        "  MissingAnswer: no answer to document 0. 11 more with a similar message: pope_s document "
    )
    assert first.endswith(" and 1 more, named in the log above.") and second == "  PromptTooLong: too long."


def test_password_in_an_address_is_not_in_the_figures_and_not_in_the_table() -> None:
    address = "http://me:secret@host:8000/v1"
    run = parse({"small": address, "large": "http://host:8001/v1"})
    found, text = figures(RunTotals(), run, {}), table(RunTotals(), run)
    assert found["engines"]["small"] == {
        "engine": "openai",
        "model": "http://<redacted>@host:8000/v1",
        "settings": "",
    }
    assert "http://<redacted>@host:8000/v1" in text and "secret" not in text
