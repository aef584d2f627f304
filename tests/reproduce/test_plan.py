"""Which runs the tables need, in which order, the lmms-eval command of each run, and the output folder."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.cli.terminal import values_of
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.reproduce import printing
from lmms_eval_mai.reproduce.folder import OutputFolder, common_arguments
from lmms_eval_mai.reproduce.methods import TABLES, Method, methods_of, read_tables
from lmms_eval_mai.reproduce.plan import Options, Run, Subject, read_models, runs
from lmms_eval_mai.run.config import parse

SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}
SHAPES = Subject("shapes", "shapes", 1234)


def plan(
    subjects: Sequence[Subject] = (SHAPES,),
    chosen: Sequence[int] = tuple(TABLES),
    pairs: Sequence[str] = (),
    **arguments: Any,
) -> list[Run]:
    return runs(read_models(pairs, arguments if pairs else {**SCRIPTED, **arguments}), subjects, chosen)


def names(found: Sequence[Run]) -> list[str]:
    return [run.name.split("/", 1)[1] for run in found]


def test_all_tables_need_both_models_with_five_prompts_and_full_rt_and_two_cascades() -> None:
    prompts = ("s", "e", "r", "e_s2", "r_s2")
    assert names(plan()) == [
        *(f"{side}/shapes_{prompt}" for side in ("small", "large") for prompt in prompts),
        *("transfer/shapes_s", "cascade/shapes_s", "cascade/shapes_r_s2"),
    ]
    another = plan([Subject("ai2d", None, 100)])  # its own prompt
    assert names(another) == ["small/ai2d", "large/ai2d", "transfer/ai2d", "cascade/ai2d"]


@pytest.mark.parametrize(
    ("benchmark", "number", "of_small", "of_large"),
    [
        ("pope", 6, "s e r e_s2 r_s2", "s e r e_s2 r_s2"),
        ("pope", 7, "", ""),
        ("chartqa", 6, "", ""),
        ("chartqa", 7, "s e_s2 r_s2", "s e_s2 r_s2"),
        ("mmmu_val", 7, "s e r", "s e r"),
        ("chartqa", 5, "s e r", "s e r"),
        ("mmmu_val", 8, "r", "s r"),
        ("pope", 8, "r", "s r_s2"),
    ],
)
def test_tables_need_single_models_with_the_prompts_of_the_paper(
    benchmark: str, number: int, of_small: str, of_large: str
) -> None:
    found = methods_of([number], benchmark)
    for side, expected in (("small", of_small), ("large", of_large)):
        assert [method.suffix for method in found if method.mode == side] == expected.split()
    assert {method.mode for method in found} <= {"small", "large", *(["transfer"] if number == 8 else [])}


def test_model_of_two_pairs_runs_alone_once() -> None:
    found = plan(chosen=(10,), pairs=["qwen3vl-2b-4b", "qwen3vl-2b-8b"])
    assert [run.name for run in found if run.method.mode in ("small", "large")] == [
        *("qwen3vl-2b-4b/small/shapes_s", "qwen3vl-2b-4b/small/shapes_r", "qwen3vl-2b-4b/large/shapes_s"),
        "qwen3vl-2b-8b/large/shapes_s",
    ]


def test_runs_of_one_model_have_no_arguments_of_sparse_transfer() -> None:
    found = plan(transfer="sparse", sparse_layer=2, engine="transformers", max_new_tokens=9)
    by_mode = {run.method.mode: run.models.of(run.method) for run in found}
    assert by_mode["small"].keys() == {"engine", "small", "large", "max_new_tokens", "mode"}
    assert by_mode["transfer"]["sparse_layer"] == 2


def test_a_threshold_adds_one_run_that_the_paper_does_not_have() -> None:
    paper, more = plan(chosen=(10,)), plan(chosen=(10,), min_confidence=0.7)
    assert [run.name for run in more][: len(paper)] == [run.name for run in paper]
    (added,) = more[len(paper) :]
    assert (added.name, added.method.title) == ("models/cascade-confidence/shapes_s", "MAI, confidence")
    for run in more:
        given = run.models.of(run.method)
        assert given.get("min_confidence") == (0.7 if run is added else None)
        assert parse(given).verify == ("confidence" if run is added else "agreement")


def test_rule_in_the_file_of_a_pair_does_not_change_the_run_with_the_papers_rule(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text("small: a\nlarge: b\nverify: confidence\n")
    for run in plan(chosen=(10,), pairs=[str(file)]):
        assert run.method.verify == parse(run.models.of(run.method)).verify == "agreement"


def test_pair_and_models_contradict_each_other() -> None:
    with pytest.raises(ArgumentError, match=r"--pairs demo and small in --model_args contradict each other\."):
        read_models(["demo"], {"small": "x"})


def test_tables_that_need_no_run_of_a_benchmark_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Table 6 has no runs on chartqa"):
        plan([Subject("chartqa", "chartqa", 1)], chosen=(6,))


def test_tables_of_the_other_family_are_those_of_the_first_one() -> None:
    assert read_tables("13,14,10") == (5, 7, 10) and read_tables(None) == tuple(TABLES)


def test_command_has_the_options_of_all_runs_and_those_of_its_run_and_is_shown_without_secrets() -> None:
    run = plan(chosen=(10,), pairs=["demo"], think="E")[-2]
    options = Options(gen_kwargs="max_new_tokens=9", limit=40, include_path="more")
    assert options.command(run, Path("out/demo/cascade/shapes_s")) == [
        *("--model", "mai_cascade", "--model_args", "pair=demo,think=E,mode=cascade"),
        *("--tasks", "shapes_s"),
        *("--gen_kwargs", "max_new_tokens=9", "--limit", "40", "--include_path", "more"),
        *("--output_path", "out/demo/cascade/shapes_s", "--log_samples"),
    ]
    secret = Run(replace(run.models, arguments={"pair": "demo", "hf_token": "hf-1"}), Method("cascade", "s"), SHAPES)
    made, shown = (" ".join(Options().command(secret, Path("out"), shown=shown)) for shown in (False, True))
    assert "hf-1" in made and "hf-1" not in shown and "--limit" not in made


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
    run = plan(chosen=(10,), pairs=["demo"], **{name: value for name, value in values.items() if name != "pair"})[-2]
    command = Options().command(run, Path("out"))
    assert values_of("--model_args", command[3]) == {**values, "mode": "cascade"}


# --- the output folder ---


def common(pairs: tuple[str, ...] = (), **change: Any) -> dict[str, str]:
    given: dict[str, Any] = {"model_args": {"max_new_tokens": 64}, "gen_kwargs": {}, "limit": 40, "include_path": None}
    given |= change
    models = read_models(pairs, {} if pairs else SCRIPTED)
    options = Options(limit=given["limit"], include_path=given["include_path"])
    return common_arguments(models, given["model_args"], given["gen_kwargs"], options)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"limit": 50}, "--limit was 40 and is 50"),
        ({"limit": None}, "--limit was 40 and is not given"),
        ({"include_path": "more"}, "--include_path was not given and is more"),
        ({"gen_kwargs": {"temperature": 0.5}}, "--gen_kwargs temperature was not given and is 0.5"),
        ({"model_args": {"max_new_tokens": 9}}, "--model_args max_new_tokens was 64 and is 9"),
    ],
)
def test_folder_of_other_arguments_is_refused_and_the_difference_is_named(
    tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    folder = OutputFolder(tmp_path)
    folder.create(common())
    with pytest.raises(ArgumentError) as error:
        folder.check(common(**change))
    assert f"have other arguments: {difference}. Give another --output_path" in str(error.value)


def test_folder_of_arguments_that_change_no_answer_and_of_more_pairs_is_used_again(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out")
    first = common(("qwen3vl-2b-4b",))
    folder.check(first)
    folder.create(first)
    more = common(
        ("qwen3vl-2b-8b",),
        model_args={"max_new_tokens": 64, "max_open_samples": 9, "large_gpu_memory_utilization": 0.5, "max_errors": 2},
    )
    folder.check(more)
    folder.create(more)
    folder.check(first)
    kept = json.loads((folder.path / "reproduce.json").read_text())["arguments"]
    assert {"pair qwen3vl-2b-4b", "pair qwen3vl-2b-8b"} < kept.keys()


def test_pair_of_the_same_name_with_other_models_is_refused(tmp_path: Path) -> None:
    folder, file = OutputFolder(tmp_path / "out"), tmp_path / "mine.yaml"
    file.write_text("small: org/small\nlarge: org/one\n")
    folder.create(common((str(file),)))
    file.write_text("small: org/small\nlarge: org/other\n")
    with pytest.raises(ArgumentError, match="pair mine was org/small and org/one and is org/small and org/other"):
        folder.check(common((str(file),)))


def test_secrets_are_not_written(tmp_path: Path) -> None:
    secrets = {"api_key": "sk-123", "small": "http://me:sk-123@host/v1"}
    OutputFolder(tmp_path).create(common(model_args=secrets))
    text = (tmp_path / "reproduce.json").read_text()
    assert "sk-123" not in text and "host/v1" in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("20260101_000000_results.json", "{}", "has files of another command"),
        *(("reproduce.json", text, r"reproduce.json cannot be read") for text in ("{", "[1]", "")),
        ("reproduce.json", '{"arguments": {"version of lmms-eval": "0.6"}}', r"version of lmms-eval was 0\.6 and is "),
    ],
)
def test_folder_with_other_files_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ArgumentError, match=message):
        OutputFolder(tmp_path).check(common())
    with pytest.raises(ArgumentError, match="is not a folder"):
        OutputFolder(tmp_path / name).check(common())


def test_run_is_finished_and_listed_so_only_when_its_folder_is_in_its_place(tmp_path: Path) -> None:
    folder, found = OutputFolder(tmp_path), plan(chosen=(10,))
    part = folder.begin(found[0])
    (part / "half of a file").write_text("")
    assert not folder.is_finished(found[0])
    part = folder.begin(found[0])  # the files of a process that was killed are gone
    assert list(part.iterdir()) == []
    (part / "results").write_text("all")
    folder.finish(found[0])
    assert (tmp_path / "models" / "small" / "shapes_s" / "results").read_text() == "all" and not part.exists()
    assert printing.plan(found, folder).splitlines() == [
        "models/small/shapes_s     small, S, 1,234 documents, finished",
        "models/small/shapes_r     small, R, 1,234 documents",
        "models/large/shapes_s     large, S, 1,234 documents",
        "models/transfer/shapes_s  Full RT, 1,234 documents",
        "models/cascade/shapes_s   MAI, 1,234 documents",
    ]
