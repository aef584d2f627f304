"""Output folders become runs, with their methods and tables of samples and calls."""

import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.folders import LARGE, POPE, SMALL, World, call, line, write_run
from support.pope_scripts import exit_of, pope_scripts

from lmms_eval_mai.paper.agreement import AgreementRules
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
    assert (run.benchmark, run.task, run.number, run.wall_s, run.engine) == ("pope", "pope_s", 4, 12.5, "vllm")
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
    (record,) = records(run)
    assert rows(pd.DataFrame(record.calls), "seconds", "shared") == expected
    found = spent(Runs([run]), run)
    assert (found["tokens"], found["wall_s"]) == (108, None)


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
@pytest.mark.parametrize("figures", [True, False])
def test_a_method_is_recognised_from_the_figures_and_without_them_from_the_arguments(
    tmp_path: Path, mode: str, suffix: str, args: str, method: Method, figures: bool
) -> None:
    POPE.write(tmp_path, mode, suffix, model_args=f"pair=qwen3vl-2b-8b,{args}", figures=figures)
    assert one_run(tmp_path).method == method


def test_checkpoints_of_the_demo_pair_have_the_same_name_on_every_machine(tmp_path: Path) -> None:
    for number, path in enumerate(("/a/lmms_eval_mai/pairs/demo/", "/b/c/lmms_eval_mai/pairs/demo/")):
        world = World("pope", POPE.documents, small=f"{path}small", large=f"{path}large")
        world.write(tmp_path, "cascade", time=f"2026010{number}_000000")
    POPE.write(tmp_path, "cascade", time="20260103_000000", model_args="pair=demo", figures=False)
    assert {run.method for run in read_runs([tmp_path]).runs} == {Method("cascade", "demo/large", "demo/small", "R")}
    file_of_pair = "pair=/home/x/mine.yaml,small=/models/s"
    POPE.write(tmp_path / "mine", "cascade", model_args=file_of_pair, figures=False)
    assert one_run(tmp_path / "mine").method == Method("cascade", "mine large", "/models/s", "R")


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
    assert (cascade.engine, large.method.variant) == ("scripted", "S")
    assert cascade.wall_s is not None and cascade.wall_s > 0
    exits = [exit_of(doc_id) for doc_id in range(12)]
    assert list(cascade.samples.exit) == exits and (cascade.samples.score == 1).all()
    assert cascade.samples.images.notna().all()
    assert list(large.samples.score) == [exit != "transfer" for exit in exits]

    runs = Runs(found.runs)
    assert runs.gaps == []
    total = runs.score(cascade)
    assert total is not None and total.value == 100 * cascade.metrics["pope_f1_score"]
    texts = list(records(cascade))
    read_again, columns = pd.DataFrame([one.row for one in texts]), ("doc_id", *SAMPLES)
    assert rows(read_again, *columns) == rows(cascade.samples.reset_index(), *columns)
    assert texts[2].question.startswith("Is there a") and texts[2].calls[2]["text"].startswith("Thinking. [[")


def test_runs_of_other_models_have_a_score_and_no_trace(tmp_path: Path) -> None:
    lines = [line(doc_id, "yes", "Yes", None, pope_accuracy={"score": float(doc_id)}) for doc_id in range(2)]
    write_run(tmp_path, "pope", lines, model="qwen3_vl", model_args="pretrained=Qwen/Qwen3-VL-2B-Instruct,x=1")
    run = one_run(tmp_path)
    assert not run.ours and run.method == Method("alone", SMALL, "", None, False)
    assert (run.benchmark, rows(run.samples, "score", "exit")) == ("pope", [(0, None), (1, None)])


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
        [] if score is not None else ["1 document without a score from 0 to 1; the total score is used."]
    )


def test_kinds_are_those_of_the_data_set_and_rotations_are_known(
    tmp_path: Path,
) -> None:
    category = {"category": "paths", "exit": "large"}
    fields = {
        "augmented": {"relaxed_augmented_split": 1.0},
        "human": {"relaxed_human_split": 1.0},
        "Physics": {"mmmu_acc": {"subdomain": "Physics"}},
        "paths": {"pope_accuracy": {"score": 1.0}, **category},
        None: {},
    }
    lines = [line(number, "Yes", "Yes", 1.0, **one) for number, one in enumerate(fields.values())]
    write_run(tmp_path, "anything", lines, model="vllm")
    assert list(one_run(tmp_path).samples.kind) == list(fields)
    rotations = [{"index": n, "category": "counting", "prediction": "A", "answer": "A"} for n in (7, 1_000_007, 8)]
    lines = [line(number, "A", "A", 1.0, gpt_eval_score=one) for number, one in enumerate(rotations)]
    mai = {"benchmark": "mmbench_en_dev", "variant": "s"}
    write_run(tmp_path / "rotations", "mmbench_en_dev_s", lines, mode="large", mai=mai)
    expected = [(7, True, "counting"), (7, False, "counting"), (8, True, "counting")]
    assert rows(one_run(tmp_path / "rotations").samples, "group", "is_main", "kind") == expected


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
    given = {"verify": "confidence", "thinker": "large", "second_check": "on"}
    figures = {"mode": "cascade", "thinker": "large", "engines": {"large": {"model": "org/b"}}}
    found = methods.method(given, figures, "S", False, "pope")
    assert (found.mode, found.small, found.model, found.variant) == ("own", "", "org/b", "R")
    for figures, second_check in (({"mode": "cascade", "second_check": "off"}, False), ({"mode": "cascade"}, True)):
        other = methods.method({"second_check": "False"}, figures, "S", False, "pope")  # a pair's file may have it too
        assert (other.mode, other.has_second_check) == ("cascade", second_check)
