"""Which runs the tables need, in which order, and the lmms-eval command of each run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.cli.command_line import values_of
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce.methods import TABLES, Method, methods_of, read_tables
from lmms_eval_mai.reproduce.plan import Options, Run, Subject, read_models, runs

SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}
SHAPES = Subject("shapes", "shapes", 1000)


def plan(
    subjects: Sequence[Subject] = (SHAPES,), chosen: Sequence[int] = TABLES, pairs: Sequence[str] = (), **arguments: Any
) -> list[Run]:
    return runs(read_models(pairs, arguments if pairs else {**SCRIPTED, **arguments}), subjects, chosen)


def names(found: Sequence[Run]) -> list[str]:
    return [run.name.split("/", 1)[1] for run in found]


def test_all_tables_need_both_models_with_five_prompts_and_full_rt_and_two_cascades() -> None:
    prompts = ("s", "e", "r", "e_s2", "r_s2")
    assert names(plan()) == [
        *(f"small/shapes_{prompt}" for prompt in prompts),
        *(f"large/shapes_{prompt}" for prompt in prompts),
        "transfer/shapes_s",
        "cascade/shapes_s",
        "cascade/shapes_r_s2",
    ]


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
    found = methods_of([number], benchmark)
    for side in ("small", "large"):
        assert [method.suffix for method in found if method.mode == side] == expected.split()
    assert {method.mode for method in found} <= {"small", "large"}


def test_table_8_needs_one_stage_of_the_large_model_on_mmmu_and_two_elsewhere() -> None:
    for benchmark, suffix in (("mmmu_val", "r"), ("pope", "r_s2")):
        found = methods_of([8], benchmark)
        assert {method.suffix for method in found if method.mode == "large"} == {"s", suffix}


def test_another_task_has_its_own_prompt_alone_and_full_rt_and_mai() -> None:
    found = plan([Subject("ai2d", None, 100)])
    assert names(found) == ["small/ai2d", "large/ai2d", "transfer/ai2d", "cascade/ai2d"]


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
        read_tables(text)
    assert message in str(error.value)


def test_tables_of_the_other_family_are_those_of_the_first_one() -> None:
    assert read_tables("13,14,10") == (5, 7, 10) and read_tables(None) == TABLES


def test_tables_without_a_run_on_the_benchmarks_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Table 6 has no runs on chartqa"):
        plan([Subject("chartqa", "chartqa", 1)], chosen=(6,))


def test_command_has_the_options_of_all_runs_and_those_of_its_run() -> None:
    run = plan(chosen=(10,), pairs=["demo"], think="E")[-1]
    options = Options(gen_kwargs="max_new_tokens=9", limit=40, include_path="more")
    assert options.command(run, Path("out/demo/cascade/shapes_s")) == [
        *("--model", "mai_cascade", "--model_args", "pair=demo,think=E,mode=cascade", "--tasks", "shapes_s"),
        *("--gen_kwargs", "max_new_tokens=9", "--limit", "40", "--include_path", "more"),
        *("--output_path", "out/demo/cascade/shapes_s", "--log_samples"),
    ]
    assert "--limit" not in Options().command(run, Path("out"))


def test_command_that_is_shown_has_no_secrets() -> None:
    (models,) = read_models(["demo"], {})
    run = Run(replace(models, arguments={"pair": "demo", "hf_token": "hf-1"}), Method("cascade", "s"), SHAPES)
    assert "hf-1" in " ".join(Options().command(run, Path("out")))
    assert "hf-1" not in " ".join(Options().command(run, Path("out"), shown=True))


@pytest.mark.slow  # imports lmms-eval
@pytest.mark.parametrize(
    "text",
    [
        "max_model_len=8192,enforce_eager=true,gpu_memory_utilization=0.85",
        'limit_mm_per_prompt={"image":8},dtype=float32',
        "small_max_num_seqs=4,chartqa_match=relaxed,call_timeout=2.5",
    ],
)
def test_model_arguments_have_the_same_values_after_they_were_written(text: str) -> None:
    values = values_of("--model_args", f"pair=demo,{text}")
    run = plan(chosen=(10,), pairs=["demo"], **{name: value for name, value in values.items() if name != "pair"})[-1]
    command = Options().command(run, Path("out"))
    assert values_of("--model_args", command[3]) == {**values, "mode": "cascade"}
