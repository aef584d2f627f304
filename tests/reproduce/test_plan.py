"""Which runs the tables need, in which order, and how many calls they make."""

from collections.abc import Sequence
from typing import Any

import pytest

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce import tables
from lmms_eval_mai.reproduce.plan import Count, Run, read_models, runs
from lmms_eval_mai.reproduce.subjects import Subject

SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}
SHAPES = Subject("shapes", "shapes", 1000, samples=False)
ALL = tuple(tables.TABLES)


def plan(
    subjects: Sequence[Subject] = (SHAPES,), chosen: Sequence[int] = ALL, pairs: Sequence[str] = (), **arguments: Any
) -> list[Run]:
    return runs(read_models(pairs, arguments if pairs else {**SCRIPTED, **arguments}), subjects, chosen)


def names(found: Sequence[Run]) -> list[str]:
    return [run.name.split("/", 1)[1] for run in found]


def total(found: Sequence[Run], name: str) -> Count:
    return sum((getattr(run, name) for run in found), Count())


def test_all_tables_need_both_models_with_five_prompts_and_full_rt_and_two_cascades() -> None:
    prompts = ("s", "e", "r", "e_s2", "r_s2")
    assert names(plan()) == [
        *(f"small/shapes_{prompt}" for prompt in prompts),
        *(f"large/shapes_{prompt}" for prompt in prompts),
        "transfer/shapes_s",
        "cascade/shapes_s",
        "cascade/shapes_r_s2",
    ]


def test_plan_makes_each_call_once_and_shares_all_others() -> None:
    found = plan()
    # 7 calls of each model alone, 2 of Full RT, 2 to 4 of MAI and 2 to 5 of MAI with two stages.
    assert total(found, "needed") == Count(20_000, 25_000)
    # 5 calls of each model alone; Full RT shares the thinking; MAI shares all its calls.
    assert total(found, "made") == Count(11_000, 11_000)
    assert [run.made for run in found[-3:]] == [Count(1000, 1000), Count(), Count()]


def test_calls_that_depend_on_answers_are_counted_once_as_possible() -> None:
    (one, two) = plan(chosen=(15,))
    assert (one.made, two.made) == (Count(2000, 4000), Count(0, 1000))  # the second one shares all but its Stage 2


def test_sampled_answers_are_not_shared() -> None:
    found = plan([Subject("shapes", "shapes", 10, samples=True)])
    assert total(found, "made") == total(found, "needed")


@pytest.mark.parametrize(
    ("benchmark", "number", "expected"),
    [
        ("pope", 6, "s e r e_s2 r_s2"),
        ("pope", 7, ""),
        ("chartqa", 6, ""),
        ("chartqa", 7, "s e_s2 r_s2"),
        ("mmmu_val", 7, "s e r"),
        ("chartqa", 5, "s e r"),
    ],
)
def test_tables_of_single_models_need_the_prompts_of_the_paper(benchmark: str, number: int, expected: str) -> None:
    found = tables.methods([number], benchmark)
    for side in ("small", "large"):
        assert [method.suffix for method in found if method.mode == side] == expected.split()
    assert {method.mode for method in found} <= {"small", "large"}


def test_table_8_needs_one_stage_of_the_large_model_on_mmmu_and_two_elsewhere() -> None:
    for benchmark, suffix in (("mmmu_val", "r"), ("pope", "r_s2")):
        found = tables.methods([8], benchmark)
        assert {method.suffix for method in found if method.mode == "large"} == {"s", suffix}


def test_another_task_has_its_own_prompt_and_its_thinking_in_full_rt_and_mai() -> None:
    found = plan([Subject("ai2d", None, 100, samples=False)])
    assert names(found) == ["small/ai2d", "large/ai2d", "transfer/ai2d", "cascade/ai2d"]
    assert total(found, "made") == Count(400, 400)  # MAI shares the calls of all three


def test_model_of_two_pairs_runs_alone_once() -> None:
    found = plan(chosen=(10,), pairs=["qwen3vl-2b-4b", "qwen3vl-2b-8b"])
    assert [run.name for run in found if run.method.mode == "small"] == [
        "qwen3vl-2b-4b/small/shapes_s",
        "qwen3vl-2b-4b/small/shapes_r",
    ]
    assert [run.name for run in found if run.method.mode == "large"] == [
        "qwen3vl-2b-4b/large/shapes_s",
        "qwen3vl-2b-8b/large/shapes_s",
    ]
    # The thinking of the 2B model serves both pairs.
    assert [run.made.most for run in found if run.method.mode == "transfer"] == [1000, 1000]


def test_runs_of_one_model_have_no_arguments_of_sparse_transfer() -> None:
    found = plan(transfer="sparse", sparse_layer=2, engine="transformers", max_new_tokens=9)
    by_mode = {run.method.mode: run.arguments() for run in found}
    assert by_mode["small"].keys() == {"engine", "small", "large", "max_new_tokens", "mode"}
    assert by_mode["transfer"]["sparse_layer"] == 2


@pytest.mark.parametrize(
    ("pairs", "arguments", "message"),
    [
        ([], {"mode": "small"}, "mode=small has no effect here, because the runs have all modes. Leave it out."),
        ([], {"journal": "off"}, "journal=off has no effect here"),
        (["demo"], {"small": "x"}, "--pairs demo and small in --model_args contradict each other."),
        (["demmo"], {}, "pair=demmo is unknown"),
        ([], {**SCRIPTED, "max_open_sample": 3}, "max_open_sample"),
    ],
)
def test_model_arguments_that_cannot_work_are_refused(
    pairs: list[str], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_models(pairs, arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9", "Table 9 is not made here: `lmms-eval-mai attention --table9` makes it."),
        ("10,12", "Table 12 is not made here"),
        ("3", "--tables 3 is invalid: expected numbers from 5, 6, 7, 8, 10, 13, 14, 15"),
        ("ten", "--tables ten is invalid"),
    ],
)
def test_tables_that_are_not_made_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        tables.read(text)
    assert message in str(error.value)


def test_tables_of_the_other_family_are_those_of_the_first_one() -> None:
    assert tables.read("13,14,10") == (5, 7, 10) and tables.read(None) == ALL


def test_tables_without_a_run_on_the_benchmarks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Table 6 has no runs on chartqa"):
        plan([Subject("chartqa", "chartqa", 1, samples=False)], chosen=(6,))
