"""Which runs the tables need, in which order, the lmms-eval command of each run, and which runs are finished."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.compare.estimate import in_words
from lmms_eval_mai.analysis.compare.plan import Options, PlannedRun, plan, read_models
from lmms_eval_mai.analysis.compare.table_runs import ALONE, DEFAULT, PAPERS, methods_on_tasks
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import FULL_RT, MAI, MAI_CONFIDENCE, OWN_THINKING, Method
from lmms_eval_mai.run.calibration import Calibrated, Calibration
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.user_input import values_of

SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}
MINE = replace(FULL_RT, name="mine")


def planned(
    benchmarks: Sequence[str] = ("shapes",),
    chosen: tuple[int, ...] = DEFAULT,
    pairs: Sequence[str] = (),
    own: Sequence[Method] = (),
    tasks: Sequence[str] = (),
    **arguments: Any,
) -> list[PlannedRun]:
    given = arguments if pairs else {**SCRIPTED, **arguments}
    return plan(read_models(dict.fromkeys(pairs or [""], chosen), given, own), tasks, benchmarks)


def names(found: Sequence[PlannedRun]) -> list[str]:
    return [run.name.split("/", 1)[1] for run in found]


def test_all_tables_need_both_models_with_five_prompts_and_full_rt_and_two_runs_of_mai() -> None:
    prompts = ("s", "e", "r", "e_s2", "r_s2")
    assert names(planned()) == [
        *(f"{side}/shapes_{prompt}" for side in SIDES for prompt in prompts),
        *("full_rt/shapes_s", "mai/shapes_s", "mai/shapes_r_s2"),
    ]


@pytest.mark.parametrize(
    ("benchmark", "number", "small_suffixes", "large_suffixes"),
    [
        ("pope", 7, "", ""),
        ("chartqa", 7, "s e_s2 r_s2", "s e_s2 r_s2"),
        ("mmmu_val", 7, "s e r", "s e r"),
        ("chartqa", 5, "s e r", "s e r"),
        ("mmmu_val", 8, "r", "s r"),
        ("pope", 8, "r", "s r_s2"),
    ],
)
def test_tables_need_single_models_with_the_prompts_of_the_paper(
    benchmark: str, number: int, small_suffixes: str, large_suffixes: str
) -> None:
    found = methods_on_tasks([number], benchmark)
    for side, expected in zip(SIDES, (small_suffixes, large_suffixes), strict=True):
        assert sorted(suffix for method, suffix in found if method.name == side) == sorted(expected.split())
    assert {method.name for method, _ in found} <= {*SIDES, *(["full_rt"] if number == 8 else [])}


def test_the_pairs_of_the_paper_have_all_models_and_benchmarks_of_its_tables() -> None:
    benchmarks = [*paper_numbers.load()["benchmarks"]]
    models = {"qwen": ("Qwen3-VL", ["2B", "4B", "8B"]), "internvl": ("InternVL3.5", ["1B", "2B", "4B", "8B", "14B"])}
    for paper, (family, sizes) in models.items():
        found = plan(read_models(PAPERS[paper], {}), (), benchmarks)
        sides = [(run, run.method.name) for run in found if run.method.name in SIDES]
        alone = [(paper_numbers.family(getattr(run.models.config, side).model), run.task) for run, side in sides]
        assert len(set(alone)) == len(alone)  # no model runs alone twice
        assert {name for name, _ in alone} == {(family, size) for size in sizes}
        assert {run.task.removesuffix("_s2")[:-2] for run in found} == set(benchmarks)


@pytest.mark.parametrize("methods", [(OWN_THINKING,), (MAI_CONFIDENCE, OWN_THINKING)])
def test_thresholds_of_a_file_add_runs_that_the_paper_does_not_have(
    tmp_path: Path, methods: tuple[Method, ...]
) -> None:
    chosen = {method.name: Calibrated(method, {"shapes": 0.7}, "", {"shapes": 9}) for method in methods}
    Calibration(chosen, {"large": "b.jsonl"}).write(tmp_path / "file.json")
    given = str(tmp_path / "file.json")
    paper, more = planned(chosen=(8, 10)), planned(chosen=(8, 10), min_confidence=given)
    added = more[len(paper) :]
    assert [run.name for run in more] == [
        *(run.name for run in paper),
        *(f"models/{method.name}/shapes_s" for method in methods),
    ]
    for run in more:
        config = parse(run.models.arguments_of(run.method))
        assert config.min_confidence == (given if run in added else None)


def test_the_work_is_estimated_by_the_output_tokens_of_the_paper_and_a_shared_call_counts_once() -> None:
    found = in_words(plan(read_models(PAPERS["qwen"], {}), (), [*paper_numbers.load()["benchmarks"]]), None, True)
    assert "114 runs" in found and "34.6 million" in found
    small_s, large_s, large_r, small_r = (
        paper_numbers.number(5, name, "chartqa", "tokens") or 0 for name in ("2B-S", "8B-S", "8B-R", "2B-R")
    )
    full_rt = small_r + large_s  # the transfer has the tokens of a short answer
    for shares_calls, mai in ((True, 0), (False, small_s + large_s + full_rt)):
        tokens = small_s + large_s + large_r + full_rt + mai
        own = in_words(planned((), (), tasks=("chartqa_s",)), None, shares_calls)
        assert f"{tokens * 2_500 / 1e6:.1f} million" in own
    assert "million" not in in_words(planned((), (), tasks=("mytask",)), None, False)


def test_each_task_has_the_models_alone_and_the_methods_of_the_paper_and_with_a_threshold_those_by_confidence() -> None:
    five = ("small", "large", "large_r", "full_rt", "mai")
    found = planned((), (), tasks=("mytask", "shapes_s"))
    assert names(found) == [f"{method}/{task}" for task in ("mytask", "shapes_s") for method in five]
    more = planned((), (), tasks=("mytask",), own=[MAI, MINE], min_confidence=0.7)
    assert names(more)[5:] == [f"{method}/mytask" for method in ("mai_confidence", "own_thinking", "mine")]
    pairs = planned((), (), tasks=("mytask",), pairs=["qwen3vl-2b-4b", "qwen3vl-4b-8b"])
    assert [run.name for run in pairs][5:] == [
        f"qwen3vl-4b-8b/{method}/mytask"
        for method in ("large", "large_r", "full_rt", "mai")  # 4B-S has run
    ]


def test_methods_of_the_user_have_runs_after_all_others_whatever_the_tables() -> None:
    found = planned(chosen=(8,), own=[MINE, MAI, MINE])
    assert names(found) == [*names(planned(chosen=(8,))), "mine/shapes_s", "mai/shapes_s"]
    command = Options(files={"mine": "here/mine.yaml"}).command(found[-2], Path("out"))
    assert command[3].endswith(",method=here/mine.yaml")
    with pytest.raises(ArgumentError, match="same name"):
        planned(own=[MINE, replace(MAI, name="mine")])


def test_the_file_of_a_pair_changes_neither_the_methods_nor_the_prompts_of_a_model_alone(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(
        "{small: a, large: b, engine: transformers, method: own_thinking, transfer: sparse, sparse_delta: 0.7, "
        "think: native, native_gen_kwargs: {temperature: 1}}"
    )
    arguments = {"max_thinking_tokens": 9, "sparse_layer": 5}
    found = planned(chosen=(10,), pairs=[str(file)], own=[replace(OWN_THINKING, name="mine")], **arguments)
    assert {run.method.name for run in found} == {"small", "large", "full_rt", "mai", "mine"}
    for run in found:
        config = parse(run.models.arguments_of(run.method))
        is_alone = run.method in ALONE.values()
        assert config.method == run.method
        assert (config.think, config.max_thinking_tokens) == (("R", None) if is_alone else ("native", 9))
        assert config.transfer == ("sparse" if run.method in (FULL_RT, MAI) else "full")
        assert not is_alone or config.settings.options == {}
        assert len(run.models.config.engines()) == 2


def test_command_has_the_options_of_all_runs_and_those_of_its_run_and_is_shown_without_secrets() -> None:
    run = planned(chosen=(10,), pairs=["demo"], think="E")[-3]
    options = Options(gen_kwargs="max_new_tokens=9", limit=40, include_path="more")
    assert options.command(run, Path("out/demo/mai/shapes_s")) == [
        *("--model", "mai_cascade", "--model_args", "pair=demo,think=E,method=mai"),
        *("--tasks", "shapes_s"),
        *("--gen_kwargs", "max_new_tokens=9", "--limit", "40", "--include_path", "more"),
        *("--output_path", "out/demo/mai/shapes_s", "--log_samples"),
    ]
    secret = replace(run, models=replace(run.models, arguments={"pair": "demo", "hf_token": "hf-1"}))
    made, shown = (" ".join(Options().command(secret, Path("out"), shown=shown)) for shown in (False, True))
    assert "hf-1" in made and "hf-1" not in shown and "--limit" not in made


def write_results(folder: Path, run: PlannedRun, include_path: str | None = None) -> Path:
    """Write what a results file of lmms-eval has of its command. lmms-eval hides secrets."""
    command = Options().command(run, folder)
    options = dict(zip(command[:-1:2], command[1::2], strict=True))
    model_args = options["--model_args"].replace("hf-1", "[REDACTED]")
    given = {"tasks": options["--tasks"], "model_args": model_args, "gen_kwargs": "", "limit": None}
    file = folder / "models" / "20261128_120000_results.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"config": {"resolved_cli_args": {**given, "include_path": include_path}}}))
    return file


@pytest.mark.parametrize(
    ("change", "options", "is_finished"),
    [
        ({}, {}, True),
        ({"hf_token": "hf-2", "max_open_samples": 9, "large_gpu_memory_utilization": 0.4, "max_num_seqs": 8}, {}, True),
        ({"think": "E"}, {}, False),
        ({"large_quantization": "awq"}, {}, False),
        ({}, {"limit": 40}, False),
        ({}, {"include_path": "more"}, False),
        ({}, {"files": {"mai": "mine.yaml"}}, False),
    ],
)
def test_a_run_is_finished_if_there_are_results_of_all_arguments_that_can_change_an_answer(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], is_finished: bool
) -> None:
    def run(**changed: Any) -> PlannedRun:
        mai = planned(chosen=(10,))[-1]
        return replace(mai, models=replace(mai.models, arguments={**SCRIPTED, "hf_token": "hf-1", **changed}))

    write_results(tmp_path, run(max_open_samples=3))
    assert Options(**options).is_finished(run(**change), tmp_path) is is_finished
    assert not Options().is_finished(replace(run(), task="shapes_r_s2"), tmp_path)
    assert not Options().is_finished(run(), tmp_path / "elsewhere")


def test_a_run_whose_seconds_count_is_made_again_with_other_arguments_of_speed_or_shared_calls(tmp_path: Path) -> None:
    run, options = planned(chosen=(10,))[-1], Options(shares_calls=False)
    file = write_results(tmp_path, run)
    assert options.is_finished(run, tmp_path)
    slower = replace(run, models=replace(run.models, arguments={**run.models.arguments, "max_open_samples": 1}))
    assert not options.is_finished(slower, tmp_path) and Options().is_finished(slower, tmp_path)
    samples = file.with_name(file.name.replace("_results.json", "_samples_shapes_s.jsonl"))
    samples.write_text('{"token_counts": [{"calls": [{"shared": true}]}]}\n')
    assert not options.is_finished(run, tmp_path)


def test_a_run_is_not_finished_if_its_results_are_broken_or_older_than_a_file_of_its_arguments(tmp_path: Path) -> None:
    pair, tasks = tmp_path / "pair.yaml", tmp_path / "tasks" / "mine.py"
    tasks.parent.mkdir()
    tasks.touch()
    pair.write_text("{small: a, large: b}")
    run, options = planned(pairs=[str(pair)])[0], Options(include_path=str(tasks.parent))
    file = write_results(tmp_path / "out", run, include_path=str(tasks.parent))
    for given in (pair, tasks):
        for later_s, is_finished in ((1, False), (-1, True)):
            os.utime(given, (file.stat().st_mtime + later_s,) * 2)
            assert options.is_finished(run, tmp_path / "out") is is_finished
    file.write_text(file.read_text()[:-1])
    assert not options.is_finished(run, tmp_path / "out")


def test_arguments_in_the_pages_about_the_paper_are_accepted_by_a_run_that_can_use_them() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    pages = "".join((docs / name).read_text() for name in ("reproduce.md", "paper-notes.md"))
    found = [text for text in re.findall(r"`([a-z_]+=[^`\s]+)`", pages) if not text.startswith("engine=")]
    assert {"pair=qwen3vl-2b-8b", "chartqa_match=relaxed"} <= set(found)
    for argument in found:
        engine = "transformers" if "sparse" in argument else "vllm"
        transfer = ",transfer=sparse" if argument.startswith("sparse_") else ""
        given = f"pair=qwen3vl-2b-8b,engine={engine},{argument}{transfer}"
        parse(values_of("--model_args", argument if argument.startswith(("pair=", "method=")) else given))
