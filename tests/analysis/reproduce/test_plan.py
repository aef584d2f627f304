"""Which runs the tables need, in which order, the lmms-eval command of each run, and the output folder."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmms_eval_mai.analysis import paper_numbers
from lmms_eval_mai.analysis.reproduce.folder import OutputFolder
from lmms_eval_mai.analysis.reproduce.methods import ALONE, DEFAULT, PAPERS, Kind, kinds_of
from lmms_eval_mai.analysis.reproduce.plan import Options, Run, read_models, runs
from lmms_eval_mai.contract import SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import FULL_RT, MAI, MAI_CONFIDENCE, OWN_THINKING, Method
from lmms_eval_mai.run.calibration import Calibrated, Calibration
from lmms_eval_mai.run.config import parse

SCRIPTED = {"engine": "scripted", "small": "a.jsonl", "large": "b.jsonl"}


def plan(
    benchmarks: Sequence[str] = ("shapes",),
    chosen: tuple[int, ...] = DEFAULT,
    pairs: Sequence[str] = (),
    own: Sequence[Method] = (),
    **arguments: Any,
) -> list[Run]:
    given = arguments if pairs else {**SCRIPTED, **arguments}
    return runs(read_models(dict.fromkeys(pairs or [""], chosen), given, own), benchmarks)


def names(found: Sequence[Run]) -> list[str]:
    return [run.name.split("/", 1)[1] for run in found]


def test_all_tables_need_both_models_with_five_prompts_and_full_rt_and_two_runs_of_mai() -> None:
    prompts = ("s", "e", "r", "e_s2", "r_s2")
    assert names(plan()) == [
        *(f"{side}/shapes_{prompt}" for side in SIDES for prompt in prompts),
        *("full_rt/shapes_s", "mai/shapes_s", "mai/shapes_r_s2"),
    ]


@pytest.mark.parametrize(
    ("benchmark", "number", "of_small", "of_large"),
    [
        ("pope", 6, "s e r e_s2 r_s2", "s e r e_s2 r_s2"),
        ("pope", 7, "", ""),
        ("pope", 14, "s e_s2 r_s2", "s e_s2 r_s2"),
        ("pope", 13, "s e r", "s e r"),
        ("chartqa", 6, "", ""),
        ("chartqa", 7, "s e_s2 r_s2", "s e_s2 r_s2"),
        ("chartqa", 14, "s e_s2 r_s2", "s e_s2 r_s2"),
        ("mmmu_val", 7, "s e r", "s e r"),
        ("mmmu_val", 14, "s e r", "s e r"),
        ("chartqa", 5, "s e r", "s e r"),
        ("mmmu_val", 8, "r", "s r"),
        ("pope", 8, "r", "s r_s2"),
    ],
)
def test_tables_need_single_models_with_the_prompts_of_the_paper(
    benchmark: str, number: int, of_small: str, of_large: str
) -> None:
    found = kinds_of([number], benchmark)
    for side, expected in zip(SIDES, (of_small, of_large), strict=True):
        assert sorted(kind.suffix for kind in found if kind.method.name == side) == sorted(expected.split())
    assert {kind.method.name for kind in found} <= {*SIDES, *(["full_rt"] if number == 8 else [])}


def test_the_pairs_of_the_paper_have_all_models_and_benchmarks_of_its_tables() -> None:
    benchmarks = [*paper_numbers.load()["benchmarks"]]
    models = {}
    for paper, pairs in PAPERS.items():
        found = runs(read_models(pairs, {}), benchmarks)
        alone = [
            (getattr(run.models.config, side).model, run.task)
            for run in found
            if (side := run.kind.method.name) in SIDES
        ]
        assert len(set(alone)) == len(alone)  # no model runs alone twice
        models[paper] = {name for model, _ in alone if (name := paper_numbers.family(model)) is not None}
        assert {run.benchmark for run in found} == set(benchmarks)
    assert models["qwen"] == {("Qwen3-VL", size) for size in ("2B", "4B", "8B")}
    assert models["internvl"] == {("InternVL3.5", size) for size in ("1B", "2B", "4B", "8B", "14B")}


def test_model_of_two_pairs_runs_alone_once() -> None:
    found = plan(chosen=(10,), pairs=["qwen3vl-2b-4b", "qwen3vl-2b-8b"])
    assert [run.name for run in found if run.kind.method in ALONE.values()] == [
        *("qwen3vl-2b-4b/small/shapes_s", "qwen3vl-2b-4b/small/shapes_r", "qwen3vl-2b-4b/large/shapes_s"),
        "qwen3vl-2b-8b/large/shapes_s",
    ]


@pytest.mark.parametrize("of_file", [None, (OWN_THINKING,), (MAI_CONFIDENCE, OWN_THINKING)])
def test_a_threshold_adds_runs_that_the_paper_does_not_have(tmp_path: Path, of_file: tuple[Method, ...] | None) -> None:
    file, methods, given = tmp_path / "file.json", of_file or (MAI_CONFIDENCE, OWN_THINKING), 0.7
    if of_file:
        chosen = {method.name: Calibrated(method, {"shapes": 0.7}, "", {"shapes": 9}) for method in of_file}
        Calibration(chosen, {"large": "b.jsonl"}).write(file)
        given = str(file)
    paper = plan(chosen=(8, 10), transfer="sparse", engine="transformers")
    more = plan(chosen=(8, 10), transfer="sparse", engine="transformers", min_confidence=given)
    assert [run.name for run in more][: len(paper)] == [run.name for run in paper]
    added = more[len(paper) :]
    assert [run.name for run in added] == [f"models/{method.name}/shapes_s" for method in methods]
    for run in more:
        config = parse(run.models.arguments_of(run.kind.method))
        assert config.min_confidence == (given if run in added else None)
        assert run not in added or config.thresholds.of("shapes") == 0.7


MINE, CHANGED = replace(FULL_RT, name="mine"), replace(MAI, name="mine")
"""Methods of the user with one name."""


def test_methods_of_the_user_have_runs_after_all_others_whatever_the_tables() -> None:
    found = plan(chosen=(8,), own=[MINE, MAI, MINE])
    assert names(found) == [*names(plan(chosen=(8,))), "mine/shapes_s", "mai/shapes_s"]
    command = Options(files={"mine": "here/mine.yaml"}).command(found[-2], Path("out"))
    assert command[3].endswith(",method=here/mine.yaml")
    with pytest.raises(ArgumentError, match="same name"):
        plan(own=[MINE, CHANGED])


def test_the_file_of_a_pair_changes_neither_the_methods_nor_the_prompts_of_a_model_alone(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(
        "{small: a, large: b, engine: transformers, method: own_thinking, transfer: sparse, sparse_delta: 0.7, "
        "think: native, native_gen_kwargs: {temperature: 1}}"
    )
    arguments = {"max_thinking_tokens": 9, "sparse_layer": 5}
    found = plan(chosen=(10,), pairs=[str(file)], own=[replace(OWN_THINKING, name="mine")], **arguments)
    assert {run.kind.method.name for run in found} == {"small", "large", "full_rt", "mai", "mine"}
    for run in found:
        config = parse(run.models.arguments_of(run.kind.method))
        is_alone = run.kind.method in ALONE.values()
        assert config.method == run.kind.method
        assert (config.think, config.max_thinking_tokens) == (("R", None) if is_alone else ("native", 9))
        assert config.transfer == ("sparse" if run.kind.method in (FULL_RT, MAI) else "full")
        assert not is_alone or config.settings.options == {}
        assert len(run.models.config.engines()) == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"pairs": ["demo"], "small": "x"}, "small"),
        ({"pairs": ["demo", "demo.yaml"]}, "demo"),
        ({"benchmarks": ["chartqa"], "chosen": (6,)}, "chartqa"),
    ],
)
def test_runs_that_cannot_be_planned_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], word: str
) -> None:
    (tmp_path / "demo.yaml").write_text("small: a\nlarge: b\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=word):
        plan(**arguments)


def test_command_has_the_options_of_all_runs_and_those_of_its_run_and_is_shown_without_secrets() -> None:
    run = plan(chosen=(10,), pairs=["demo"], think="E")[-3]
    options = Options(gen_kwargs="max_new_tokens=9", limit=40, include_path="more")
    assert options.command(run, Path("out/demo/mai/shapes_s")) == [
        *("--model", "mai_cascade", "--model_args", "pair=demo,think=E,method=mai"),
        *("--tasks", "shapes_s"),
        *("--gen_kwargs", "max_new_tokens=9", "--limit", "40", "--include_path", "more"),
        *("--output_path", "out/demo/mai/shapes_s", "--log_samples"),
    ]
    secret = Run(replace(run.models, arguments={"pair": "demo", "hf_token": "hf-1"}), Kind(MAI, "s"), "shapes")
    made, shown = (" ".join(Options().command(secret, Path("out"), shown=shown)) for shown in (False, True))
    assert "hf-1" in made and "hf-1" not in shown and "--limit" not in made


# --- the output folder ---


def finish(path: Path, found: Sequence[Run]) -> None:
    """Finish runs that have no files."""
    folder = OutputFolder.open(path, found, Options())
    for run in found:
        folder.finish(run)


@pytest.mark.parametrize(
    "change",
    [
        {"small": "other"},
        {"think": "E"},
        {"native_gen_kwargs": {"temperature": 1}},
        {"max_new_tokens": 9},
        pytest.param({"quantization": "awq"}, marks=pytest.mark.slow),  # it imports vLLM
    ],
)
def test_a_pair_whose_file_now_gives_other_answers_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "pair.yaml"
    pair = {"small": "a", "large": "b", "think": "native"}
    file.write_text(json.dumps(pair))
    finish(tmp_path / "out", plan(pairs=[str(file)]))
    file.write_text(json.dumps(pair | change))
    with pytest.raises(ArgumentError, match="out has runs with other arguments"):
        OutputFolder.open(tmp_path / "out", plan(pairs=[str(file)]), Options())


@pytest.mark.parametrize(
    "options", [Options(limit=40), Options(gen_kwargs="temperature=0.5"), Options(include_path="more")]
)
def test_other_options_are_refused(tmp_path: Path, options: Options) -> None:
    finish(tmp_path / "out", plan())
    with pytest.raises(ArgumentError, match="other arguments"):
        OutputFolder.open(tmp_path / "out", plan(pairs=["demo"]), options)  # none of its runs is finished


def test_what_changes_no_answer_may_change_and_pairs_and_methods_are_added_later(tmp_path: Path) -> None:
    models = {"engine": "transformers", "small": "a", "large": "b"}
    finish(tmp_path / "out", plan(**models))
    finish(tmp_path / "out", plan(pairs=["demo"]))
    same = plan(**models, own=[MINE], max_open_samples=9, max_errors=2, large_device="cpu")
    folder = OutputFolder.open(tmp_path / "out", same, Options())
    assert [run.name for run in same if not folder.is_finished(run)] == ["models/mine/shapes_s"]


def test_a_changed_method_or_threshold_of_the_same_name_is_refused(tmp_path: Path) -> None:
    finish(tmp_path / "out", plan(own=[MINE], min_confidence=0.7))
    for changed in (plan(own=[CHANGED]), plan(min_confidence=0.8)):
        with pytest.raises(ArgumentError, match="other arguments"):
            OutputFolder.open(tmp_path / "out", changed, Options())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("20260101_000000_results.json", "{}"),
        ("reproduce.json", "[1]"),
        ("reproduce.json", '{"finished": ["models/small/shapes_s"]}'),
    ],
)
def test_folder_with_other_files_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(ArgumentError, match=str(path)):
            OutputFolder.open(path, plan(), Options())


def test_run_is_finished_only_when_the_folder_says_so(tmp_path: Path) -> None:
    found = plan(chosen=(10,))
    folder = OutputFolder.open(tmp_path, found, Options())
    (folder.begin(found[0]) / "half of a file").write_text("")
    assert not folder.is_finished(found[0])
    place = folder.begin(found[0])  # the files of a process that was killed are gone
    assert list(place.iterdir()) == []
    folder.finish(found[0])
    again = OutputFolder.open(tmp_path, found, Options())
    assert [again.is_finished(run) for run in found] == [True, False, False, False, False]
