"""Tables about another lmms-eval task, which has its own prompt instead of S, E and R."""

from pathlib import Path

import pytest
from support.folders import LARGE, POPE, SMALL, write_run
from support.tables import row_of, value

from lmms_eval_mai.reports.build import report
from lmms_eval_mai.reports.evidence import Evidence
from lmms_eval_mai.reports.read import read
from lmms_eval_mai.reports.report import Report

TASK = "any_task"
ENGINES = {"small": SMALL, "large": LARGE}


def write(folder: Path, mode: str, day: int, model_args: str = "") -> None:
    """Write a run of the task with the answers of `POPE`."""
    lines = [POPE.line(doc_id, one, mode, "s") for doc_id, one in enumerate(POPE.documents)]
    write_run(folder, TASK, lines, time=f"2026010{day}_000000", mode=mode, engines=ENGINES, model_args=model_args)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("runs")
    for day, mode in enumerate(("small", "large", "transfer", "cascade"), start=1):
        write(folder, mode, day)
    return report([folder])


def test_output_tokens_of_a_task_are_those_of_its_own_prompt(found: Report) -> None:
    for model in ("2B", "8B"):
        row = row_of(found.table("table-5"), TASK, model)
        assert (value(row["own prompt"]), value(row["own prompt, answer only"]), row["n"]) == (4.0, 1.0, 4)
        assert [row[prompt] for prompt in ("S", "E", "R")] == [None, None, None]


def test_table_10_has_no_score_of_small_r_for_a_task_without_prompt_r(found: Report) -> None:
    row = row_of(found.table("table-10"), TASK)
    assert row["small R"] is None
    assert "in place of S" in found.table("table-10").notes[-1]
    assert (value(row["small S"]), value(row["large S"])) == (50.0, 75.0)


def test_cascades_of_a_task_that_think_with_e_and_with_r_are_two_methods(tmp_path: Path) -> None:
    write(tmp_path, "cascade", 1, "think=E")
    write(tmp_path, "cascade", 2, "think=R")
    write(tmp_path, "transfer", 3, "think=E")
    evidence = Evidence(read([tmp_path]).runs)
    assert evidence.gaps == []
    thinking_e, thinking_r = sorted(evidence.of("cascade"), key=lambda run: run.file)
    assert thinking_e.method.options == ("think=E",) and thinking_r.method.options == ()
    assert [evidence.name(run.method) for run in (thinking_e, thinking_r)] == [
        "MAI 8B + 2B-E, own prompt",
        "MAI 8B + 2B-R, own prompt",
    ]
    assert evidence.get(TASK, thinking_e.method.full_rt()) is not None
    assert evidence.get(TASK, thinking_r.method.full_rt()) is None
