"""Output folders become runs, with their methods and tables of samples and calls."""

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.folders import LARGE, POPE, SMALL, World, edit, line, write_run
from support.pope_scripts import exit_of, pope_scripts

from lmms_eval_mai.analysis.frames import CALLS, SAMPLES
from lmms_eval_mai.analysis.runs.folders import FinishedRun, read_runs
from lmms_eval_mai.analysis.runs.records import records
from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.analysis.tables.summary import spent
from lmms_eval_mai.method.agreement import RULES, AgreementRules
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import FULL_RT, MAI, OWN_THINKING, Method
from lmms_eval_mai.method.methods import LARGE as ALONE


def rows(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns of a table, with None in place of nan."""
    found = table[list(columns)].astype(object)
    return list(found.where(found.notna(), None).itertuples(index=False, name=None))


def one_run(folder: Path) -> FinishedRun:
    (run,) = read_runs([folder]).runs
    return run


def with_options(options: dict[str, Any]) -> World:
    return dataclasses.replace(POPE, options=options)


def test_a_cascade_is_read_with_its_exits_calls_and_models(tmp_path: Path) -> None:
    with_options({"anls_threshold": 0.5}).write(tmp_path, "mai", wall_s=12.5)
    run = one_run(tmp_path)
    assert run.setup == Setup(MAI, LARGE, SMALL, "R", False, (("anls_threshold", 0.5),))
    assert (run.benchmark, run.task, run.documents, run.wall_s) == ("pope", "pope_s", 4, 12.5)
    assert run.rules == AgreementRules(anls_threshold=0.5)
    assert list(run.samples) == list(SAMPLES) and list(run.calls) == list(CALLS)
    assert rows(run.samples, "exit", "score", "predicted", "gold") == [
        ("agree_short", 1, "yes", "yes"),
        ("agree_think", 1, "no", "no"),
        ("transfer", 1, "yes", "yes"),
        ("transfer", 0, "yes", "no"),
    ]
    assert rows(run.samples.loc[[3]], "output_tokens", "parsed") == [(113, "yes")]
    assert rows(run.calls[run.calls.doc_id == 3], "side", "prompt", "of", "parsed", "output_tokens") == [
        ("small", "simple", None, None, 4),
        ("large", "simple", None, "no", 4),
        ("small", "think", None, "yes", 100),
        ("large", "transfer", "small.think", "yes", 5),
    ]


def test_a_run_with_shared_calls_has_no_times(tmp_path: Path) -> None:
    World("pope", POPE.documents[:1]).write(tmp_path, "full_rt")
    edit(tmp_path, lambda line, _: line["token_counts"][0]["calls"][0].update(shared=True))
    run = one_run(tmp_path)
    assert run.wall_s is None
    assert rows(run.calls, "seconds", "shared") == [(None, True), (0.25, False)]
    found = spent(run)
    assert (found["small_tokens"], found["large_tokens"], found["wall_s"]) == (100, 5, None)


@pytest.mark.parametrize(
    ("method", "suffix", "options", "setup"),
    [
        ("mai", "r_s2", {}, Setup(MAI, LARGE, SMALL, "R", True)),
        ("mai", "e", {}, Setup(MAI, LARGE, SMALL, "E")),
        ("mai", "s", {"think": "E"}, Setup(MAI, LARGE, SMALL, "E")),
        ("mai", "s", {"b": 1, "a": ["x", "y"]}, Setup(MAI, LARGE, SMALL, "R", False, (("a", "['x', 'y']"), ("b", 1)))),
        (
            "full_rt",
            "s",
            {"transfer_answer": "cut"},
            Setup(FULL_RT, LARGE, SMALL, "R", False, (("transfer_answer", "cut"),)),
        ),
        ("full_rt", "s", {"transfer_answer": "keep"}, Setup(FULL_RT, LARGE, SMALL, "R")),  # POPE's default
        ("small", "e_s2", {}, Setup(ALONE, SMALL, "", "E", True)),
        ("large", "s", {"temperature": 0.7}, Setup(ALONE, LARGE, "", "S", False, (("temperature", 0.7),))),
        ("large_r", "s", {}, Setup(ALONE, LARGE, "", "R")),  # as `large` in a task with prompt R
        ("large_r", "r_s2", {}, Setup(ALONE, LARGE, "", "R", True)),
        ("own_thinking", "s", {}, Setup(OWN_THINKING, LARGE, "", "R", False, (("min_confidence", 0.9),))),
    ],
)
def test_a_setup_is_that_of_the_traces_and_the_task_whatever_the_arguments_say(
    tmp_path: Path, method: str, suffix: str, options: dict[str, Any], setup: Setup
) -> None:
    with_options(options).write(tmp_path, method, suffix, model_args="method=small,anls_threshold=0.7")
    run = one_run(tmp_path)
    assert run.setup == setup
    assert run.setup.family == {"mai": "cascade", "full_rt": "full_rt", "own_thinking": "solo"}.get(method, "alone")


def test_the_score_of_a_task_of_ones_own_is_its_first_metric_that_is_a_number_of_0_to_1(tmp_path: Path) -> None:
    fields = {"mine": {"mine": 0.5, "words": 12, "acc": 0.0}, "acc": {"words": 12, "acc": 1.0}}
    for name, values in fields.items():
        write_run(tmp_path / name, "t", [line(0, "a", "a", None, **values)], metrics=("words", "mine", "acc"))
        assert list(one_run(tmp_path / name).samples.score) == [values[name]]


@pytest.mark.parametrize("suffix", ["s", "r_s2"])
def test_a_model_alone_has_the_prompt_that_its_only_call_asked(tmp_path: Path, suffix: str) -> None:
    for prompt in ("simple", "think"):
        steps = [{"ask": f"large.{prompt}"}, {"stop": {"exit": "done", "answer": f"large.{prompt}"}}]
        POPE.write(tmp_path, read_steps("mine", steps, ""), suffix, time=prompt)
    setups = {run.setup for run in read_runs([tmp_path]).runs}
    assert setups == {Setup(ALONE, LARGE), Setup(ALONE, LARGE, "", "R", suffix == "r_s2")}


def test_other_steps_with_the_name_of_a_method_are_not_that_method(tmp_path: Path) -> None:
    POPE.write(tmp_path, Method("mai", OWN_THINKING.steps))
    assert one_run(tmp_path).setup.method != MAI


def test_runs_with_other_rules_of_agreement_are_not_mixed_with_those_of_this_version(tmp_path: Path) -> None:
    for method in ("mai", "full_rt", "large"):
        for folder in ("new", "old"):
            POPE.write(tmp_path / folder, method, time=method)
    new = {run.setup for run in read_runs([tmp_path / "new"]).runs}
    for file in (tmp_path / "old").glob("*_samples_*"):
        file.write_text(file.read_text().replace(f', "rules": {RULES}', ""))  # as before the rules had a number
    old = {run.setup for run in read_runs([tmp_path / "old"]).runs}
    assert len(new & old) == 1  # a model alone is the same
    assert {setup.options for setup in old - new} == {(("rules", 1),)}


def test_full_rt_of_a_cascade_has_its_models_and_thinking_and_no_options_of_agreement() -> None:
    cascade = Setup(
        MAI, LARGE, SMALL, "E", True, (("anls_threshold", 0.5), ("temperature", 0.7), ("transfer_answer", "cut"))
    )
    assert cascade.full_rt() == Setup(
        FULL_RT, LARGE, SMALL, "E", False, (("temperature", 0.7), ("transfer_answer", "cut"))
    )
    assert Setup(OWN_THINKING, LARGE).full_rt().small == ""  # no pair of a model with itself


def test_checkpoints_of_the_demo_pair_have_the_same_name_on_every_machine(tmp_path: Path) -> None:
    for number, path in enumerate(("/a/lmms_eval_mai/pairs/demo/", "/b/c/lmms_eval_mai/pairs/demo/")):
        world = World("pope", POPE.documents, small=f"{path}small", large=f"{path}large")
        world.write(tmp_path, "mai", time=f"2026010{number}_000000")
    assert {run.setup for run in read_runs([tmp_path]).runs} == {Setup(MAI, "demo/large", "demo/small", "R")}


@pytest.mark.slow
def test_files_that_lmms_eval_itself_wrote_are_read(
    task_manager: Any, in_drawn_data: Path, write_script: Any, tmp_path: Path
) -> None:
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.loggers import EvaluationTracker

    scripts = pope_scripts(write_script, "pope_s")
    for number, method in enumerate(("mai", "large")):
        arguments = scripts | {"method": method, "store": "off", "model_name": "pair"}
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
    assert cascade.setup == Setup(MAI, scripts["large"], scripts["small"], "R")
    assert large.setup.variant == "S"
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
    texts = [record for record in records(cascade.samples_file, ()) if record]
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
    write_run(tmp_path, "mmbench_en_dev_s", lines, mai={"benchmark": "mmbench_en_dev", "variant": "s"})
    assert rows(one_run(tmp_path).samples, "group", "is_main") == [(7, True), (7, False), (8, True)]


def test_texts_of_calls_are_not_kept(tmp_path: Path) -> None:
    World("pope", POPE.documents[:1] * 100).write(tmp_path, "large", "r")
    edit(tmp_path, lambda line, _: line["token_counts"][0]["calls"][0].update(text="word " * 20_000))
    tracemalloc.start()
    run = one_run(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.documents == 100
    assert peak < 2**21  # the file has 10 MB
