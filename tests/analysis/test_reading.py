"""Output folders become runs, with their methods and frames of samples and calls; the public function `read`."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.folders import LARGE, POPE, SMALL, World, edit, line, write_run
from support.pair import Answers

from lmms_eval_mai.analysis import KEYS, read
from lmms_eval_mai.analysis.frames import CALLS, SAMPLES, samples_and_calls, wall_s_by_task
from lmms_eval_mai.analysis.runs.folders import FinishedRun, read_runs
from lmms_eval_mai.analysis.runs.setups import Setup
from lmms_eval_mai.analysis.tables.summary import spent
from lmms_eval_mai.method.agreement import AgreementRules
from lmms_eval_mai.method.files import read_steps
from lmms_eval_mai.method.methods import FULL_RT, MAI, OWN_THINKING, Method
from lmms_eval_mai.method.methods import LARGE as ALONE

DOCS = Path(__file__).parents[2] / "docs" / "reports.md"


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


def test_a_run_with_shared_calls_has_no_times_and_one_without_some_trace_no_costs(tmp_path: Path) -> None:
    World("pope", POPE.documents[:1]).write(tmp_path, "full_rt")
    edit(tmp_path, lambda line, _: line["token_counts"][0]["calls"][0].update(shared=True))
    run = one_run(tmp_path)
    assert rows(run.calls, "seconds", "shared") == [(None, True), (0.25, False)]
    assert [*spent(run).values()] == [100, 5, None]
    POPE.write(tmp_path / "other", "full_rt")
    edit(tmp_path / "other", lambda line, number: line.update(token_counts=[None]) if number else None)
    assert [*spent(one_run(tmp_path / "other")).values()][:2] == [None, None]


@pytest.mark.parametrize(
    ("method", "suffix", "options", "setup"),
    [
        ("mai", "r_s2", {}, Setup(MAI, LARGE, SMALL, "R", True)),
        ("mai", "e", {}, Setup(MAI, LARGE, SMALL, "E")),
        ("mai", "s", {"think": "E"}, Setup(MAI, LARGE, SMALL, "E")),
        ("full_rt", "s", {"b": 1, "a": ["x"]}, Setup(FULL_RT, LARGE, SMALL, "R", False, (("a", "['x']"), ("b", 1)))),
        ("full_rt", "s", {"transfer_answer": "keep"}, Setup(FULL_RT, LARGE, SMALL, "R")),  # POPE's default
        ("small", "e_s2", {}, Setup(ALONE, SMALL, "", "E", True)),
        ("large", "s", {"temperature": 0.7}, Setup(ALONE, LARGE, "", "S", False, (("temperature", 0.7),))),
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


def test_a_run_with_the_rules_of_agreement_of_an_earlier_version_has_them_as_an_option(tmp_path: Path) -> None:
    POPE.write(tmp_path, "mai")
    edit(tmp_path, lambda line, _: line["token_counts"][0].pop("rules"))
    assert one_run(tmp_path).setup.options == (("rules", 1),)


def test_other_steps_with_the_name_of_a_method_are_not_that_method(tmp_path: Path) -> None:
    POPE.write(tmp_path, Method("mai", OWN_THINKING.steps))
    assert one_run(tmp_path).setup.method != MAI


MMBENCH = {"index": 3, "prediction": "B. a cat", "answer": "B", "A": "a dog", "B": "a cat", "C": "nan", "D": "nan"}
MMMU = {"question_type": "multiple-choice", "answer": "A", "parsed_pred": ["C"], "subdomain": "Art"}


@pytest.mark.parametrize(
    ("task", "fields", "score"),
    [
        ("mmbench_en_dev_static", {"gpt_eval_score": MMBENCH}, 1),
        ("mmmu_val", {"mmmu_acc": MMMU}, 0),
        ("infovqa_val", {"anls": 0.75}, 0.75),
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


def test_all_samples_and_calls_have_the_keys_of_their_run_in_front(tmp_path: Path) -> None:
    older = POPE.write(tmp_path, "mai", time="20260101_000000")
    POPE.write(tmp_path, "mai", time="20260102_000000")
    POPE.write(tmp_path, "small", "r", time="20260103_000000")
    write_run(tmp_path, "pope", [line(0, "yes", "yes", 1.0)], model="qwen3_vl", model_args="pretrained=a/big", time="4")
    samples, calls = read([str(tmp_path)])
    assert list(samples) == [*KEYS, "doc_id", *SAMPLES] and list(calls) == [*KEYS, *CALLS]
    found = samples.groupby("name")[["method", "small", "large"]].first().to_dict("index")
    assert found == {
        "MAI": {"method": "mai", "small": SMALL, "large": LARGE},
        "small R": {"method": "small", "small": SMALL, "large": ""},
        "big, own prompt": {"method": "", "small": "", "large": "a/big"},
    }
    mai = samples[samples.method == "mai"]
    assert len(mai) == 8 and str(older) in set(mai.run)  # also the run that a report leaves out
    assert len(calls[calls.run == str(older)]) == 2 + 3 + 4 + 4


def test_the_example_of_the_documentation_answers_its_questions(tmp_path: Path, monkeypatch: Any) -> None:
    kinds = [Answers("A", "A", "A", "A", "A", category=kind) for kind in ("maps", "maps", "tables")]
    World("shapes", kinds).write(tmp_path / "out", "mai")
    POPE.write(tmp_path / "out", "full_rt", time="20260102_000000")
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(example, names)
    by_category: pd.DataFrame = names["by_category"]
    assert by_category.loc[("shapes", "maps", "agree_short")].tolist() == [2, 1]
    assert names["lengths"].loc[("full_rt", "small")].tolist() == [100, 100]


def test_the_time_between_the_ends_of_two_documents_belongs_to_the_task_of_the_second_one() -> None:
    ends = {"pope_s": (10.0, 30.0), "pope_r": (14.0, 31.0)}
    rows = {
        task: [{"doc_id": number, "started_at": end - 0.5, "seconds": 0.5} for number, end in enumerate(several)]
        for task, several in ends.items()
    }
    columns = {name: 0 for name, (kind, _) in CALLS.items() if kind is int}
    calls = {task: samples_and_calls([], [columns | row for row in several]).calls for task, several in rows.items()}
    assert wall_s_by_task(calls) == {"pope_s": 0.5 + 16, "pope_r": 4 + 1}
    assert sum(wall_s_by_task(calls, is_resumed=True).values()) == 0.5 + 4 + 0.5 + 1  # a pause of 15.5 s
    calls["pope_r"].loc[0, "seconds"] = None  # it is shared
    assert wall_s_by_task(calls) == {}
