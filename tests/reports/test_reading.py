"""Output folders become runs, with their methods and tables of samples and calls."""

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.folders import LARGE, POPE, SMALL, World, call, line, write_run
from support.pope_scripts import exit_of, pope_scripts

from lmms_eval_mai.paper.agreement import AgreementRules
from lmms_eval_mai.paper.confidence import Choices
from lmms_eval_mai.reports import methods
from lmms_eval_mai.reports.folders import Run, read_runs, records
from lmms_eval_mai.reports.methods import Method
from lmms_eval_mai.reports.rows import CALLS, SAMPLES
from lmms_eval_mai.reports.runs import Runs
from lmms_eval_mai.reports.summary import spent


def rows(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns of a table, with None in place of nan."""
    found = table[list(columns)].astype(object)
    return list(found.where(found.notna(), None).itertuples(index=False, name=None))


def one_run(folder: Path) -> Run:
    (run,) = read_runs([folder]).runs
    return run


def test_a_cascade_is_read_with_its_exits_calls_and_models(tmp_path: Path) -> None:
    POPE.write(tmp_path, "cascade", model_args="pair=qwen3vl-2b-8b,anls_threshold=0.5", wall_s=12.5)
    run = one_run(tmp_path)
    assert run.method == Method("cascade", LARGE, SMALL, "R", False, ("anls_threshold=0.5",))
    assert (run.benchmark, run.task, run.documents, run.wall_s) == ("pope", "pope_s", 4, 12.5)
    assert run.rules == AgreementRules(anls_threshold=0.5)
    assert list(run.samples) == list(SAMPLES) and list(run.calls) == list(CALLS)
    assert rows(run.samples, "exit", "score", "predicted", "gold") == [
        ("agree_short", 1, "yes", "yes"),
        ("agree_think", 1, "no", "no"),
        ("transfer", 1, "yes", "yes"),
        ("transfer", 0, "yes", "no"),
    ]
    assert rows(run.samples.loc[[3]], "output_tokens", "small_answer", "large_answer", "thought_answer") == [
        (113, None, "no", "yes")
    ]
    assert rows(run.calls[run.calls.doc_id == 3], "side", "stage", "output_tokens") == [
        ("small", "short", 4),
        ("large", "short", 4),
        ("small", "think", 100),
        ("large", "transfer", 5),
    ]


def test_a_run_with_shared_calls_has_no_times(tmp_path: Path) -> None:
    shared = call("small", "think", "A", shared=True, total_s=None)
    calls = [shared, call("small", "stage2", "a"), call("large", "transfer", "[[a]]")]
    write_run(
        tmp_path,
        "t",
        [line(0, "a", "a", 1.0, calls, exit="transfer")],
        mode="transfer",
        small={"calls": 1, "shared_calls": 1},
        large={"calls": 1},
    )
    run = one_run(tmp_path)
    assert run.wall_s is None
    expected = [(None, True), (0.25, False), (0.25, False)]
    assert rows(run.calls, "seconds", "shared") == expected
    found = spent(run)
    assert (found["small_tokens"], found["large_tokens"], found["wall_s"]) == (103, 5, None)


@pytest.mark.parametrize(
    ("mode", "suffix", "args", "method"),
    [
        ("cascade", "r_s2", "", Method("cascade", LARGE, SMALL, "R", True)),
        ("cascade", "e", "", Method("cascade", LARGE, SMALL, "E", False)),
        ("cascade", "s", "think=E", Method("cascade", LARGE, SMALL, "E", False)),
        (
            "transfer",
            "s",
            "transfer_answer=cut",
            Method("transfer", LARGE, SMALL, "R", False, ("transfer_answer=cut",)),
        ),
        ("transfer", "s", "transfer_answer=keep", Method("transfer", LARGE, SMALL, "R", False)),  # POPE's default
        ("transfer", "s", "anls_threshold=0.5", Method("transfer", LARGE, SMALL, "R", False)),
        ("small", "e_s2", "max_model_len=8192", Method("alone", SMALL, "", "E", True)),
        ("large", "s", "decoding=official", Method("alone", LARGE, "", "S", False, ("decoding=official",))),
    ],
)
def test_a_method_is_recognised_from_the_figures_the_arguments_and_the_task(
    tmp_path: Path, mode: str, suffix: str, args: str, method: Method
) -> None:
    file = POPE.write(tmp_path, mode, suffix, model_args=f"pair=qwen3vl-2b-8b,{args}")
    assert one_run(tmp_path).method == method
    results = json.loads(file.read_text())  # from Python or a YAML file, the arguments are a mapping
    results["config"]["model_args"] = dict(one.split("=") for one in args.split(",") if one)
    file.write_text(json.dumps({**results, "system_instruction": "Be brief, please."}))
    options = (*method.options, "system_instruction=Be brief, please.")
    assert one_run(tmp_path).method == dataclasses.replace(method, options=tuple(sorted(options)))


def test_checkpoints_of_the_demo_pair_have_the_same_name_on_every_machine(tmp_path: Path) -> None:
    for number, path in enumerate(("/a/lmms_eval_mai/pairs/demo/", "/b/c/lmms_eval_mai/pairs/demo/")):
        world = World("pope", POPE.documents, small=f"{path}small", large=f"{path}large")
        world.write(tmp_path, "cascade", time=f"2026010{number}_000000")
    assert {run.method for run in read_runs([tmp_path]).runs} == {Method("cascade", "demo/large", "demo/small", "R")}


@pytest.mark.slow
def test_files_that_lmms_eval_itself_wrote_are_read(
    task_manager: Any, in_drawn_data: Path, write_script: Any, tmp_path: Path
) -> None:
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.loggers import EvaluationTracker

    scripts = pope_scripts(write_script, "pope_s")
    for number, mode in enumerate(("cascade", "large")):
        arguments = scripts | {"mode": mode, "store": "off", "model_name": "pair"}
        tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
        results = simple_evaluate(
            model="mai_cascade",
            model_args=",".join(f"{name}={value}" for name, value in arguments.items()),
            tasks=["pope_s"],
            task_manager=task_manager,
            batch_size=1,
            log_samples=True,
            evaluation_tracker=tracker,
            datetime_str=f"20260101_00000{number}",
        )
        lines = results.pop("samples")
        tracker.save_results_aggregated(results, lines, f"20260101_00000{number}")
        tracker.save_results_samples("pope_s", lines["pope_s"])
    found = read_runs([tmp_path / "out"])
    assert found.gaps == []
    cascade, large = found.runs
    assert cascade.method == Method("cascade", scripts["large"], scripts["small"], "R")
    assert large.method.variant == "S"
    assert cascade.wall_s is not None and cascade.wall_s > 0
    exits = [exit_of(doc_id) for doc_id in range(12)]
    assert list(cascade.samples.exit) == exits and (cascade.samples.score == 1).all()
    assert cascade.samples.images.notna().all()
    assert list(large.samples.score) == [exit != "transfer" for exit in exits]

    runs = Runs(found.runs)
    assert runs.gaps == []
    total = runs.score(cascade)
    by_lmms_eval = json.loads(cascade.file.read_text())["results"]["pope_s"]["pope_f1_score,none"]
    assert total is not None and total.value == 100 * by_lmms_eval
    texts = list(records(cascade))
    read_again, columns = pd.DataFrame([one.row for one in texts]), ("doc_id", *SAMPLES)
    assert rows(read_again, *columns) == rows(cascade.samples.reset_index(), *columns)
    assert texts[2].question.startswith("Is there a") and texts[2].calls[2]["text"].startswith("I see 2. [[")


MMBENCH = {"index": 3, "prediction": "B. a cat", "answer": "B", "A": "a dog", "B": "a cat", "C": "nan", "D": "nan"}
MMMU = {"question_type": "multiple-choice", "answer": "A", "parsed_pred": ["C"], "subdomain": "Art"}


@pytest.mark.parametrize(
    ("task", "fields", "score"),
    [
        ("mmbench_en_dev_static", {"gpt_eval_score": MMBENCH}, 1),
        ("mmmu_val", {"mmmu_acc": MMMU}, 0),
        ("chartqa", {"relaxed_overall": 1.0, "relaxed_human_split": 1.0}, 1),
        ("infovqa_val", {"anls": 0.75}, 0.75),
        ("realworldqa", {"exact_match": 0.0}, 0),
        ("mmmu_val", {"mmmu_acc": {"question_type": "open", "answer": "1000", "parsed_pred": [["x", 1000.0]]}}, 1),
        ("gqa", {"other": 3.0}, None),
    ],
)
def test_scores_of_lmms_evals_own_tasks_are_read(
    tmp_path: Path, task_manager: Any, task: str, fields: dict[str, Any], score: float | None
) -> None:
    write_run(tmp_path, task, [line(0, "A", "C", None, **fields)], model="vllm")
    found = read_runs([tmp_path])
    assert rows(found.runs[0].samples, "score") == [(score,)]
    assert [gap.partition(": ")[2] for gap in found.gaps] == (
        [] if score is not None else ["there are 1 documents without a score from 0 to 1."]
    )


def test_rotations_of_a_question_are_known(tmp_path: Path) -> None:
    rotations = [{"index": n, "category": "counting", "prediction": "A", "answer": "A"} for n in (7, 1_000_007, 8)]
    lines = [line(number, "A", "A", 1.0, gpt_eval_score=one) for number, one in enumerate(rotations)]
    write_run(tmp_path, "mmbench_en_dev_s", lines, mode="large", mai={"benchmark": "mmbench_en_dev", "variant": "s"})
    assert rows(one_run(tmp_path).samples, "group", "is_main") == [(7, True), (7, False), (8, True)]


def test_texts_of_calls_are_not_kept(tmp_path: Path) -> None:
    calls = [call("large", "think", "word " * 20_000)]
    lines = [line(n, "yes", "yes", 1.0, exit="large", readable=True, answers=[], calls=calls) for n in range(100)]
    write_run(tmp_path, "pope_r", lines, mode="large", mai={"benchmark": "pope", "variant": "r"})
    tracemalloc.start()
    run = one_run(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.documents == 100
    assert peak < 2**21  # the file has 10 MB


def test_a_large_model_that_thinks_for_itself_is_a_method_of_its_own() -> None:
    check = {"verify": "confidence", "min_confidence": 0.9, "by_benchmark": {"pope": 0.7}}
    figures = {"mode": "cascade", "thinker": "large", "engines": {"large": {"model": "org/b"}}, "first_check": check}
    found = methods.method({"second_check": "on"}, figures, "S", False, "pope")
    assert (found.mode, found.small, found.model, found.variant, found.min_confidence) == ("own", "", "org/b", "R", 0.7)
    engines = {side: {"model": side} for side in ("small", "large")}
    for second_check in ("off", "on"):  # a pair's file may have it
        other = methods.method(
            {}, {"mode": "cascade", "engines": engines, "second_check": second_check}, "S", False, None
        )
        assert (other.mode, other.choices) == ("cascade", Choices(second_check=second_check))
