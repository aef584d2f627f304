"""`lmms-eval-mai compare` on a task of a user, killed in the middle and resumed."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from support.compare import finished_run, shared_calls
from support.own_command import refusal, run_command
from support.own_task import NAME, answers, write_task
from support.processes import Command, strike

from lmms_eval_mai.analysis.runs.runs import Runs
from lmms_eval_mai.analysis.tables.summary import spent

ROWS = 12
METHODS = ("small", "large", "large_r", "full_rt", "mai", "mai_confidence", "own_thinking")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of the command, without the output folder."""
    folder = tmp_path_factory.mktemp("own")
    for side, records in answers(ROWS, seconds=0.05).items():
        (folder / f"{side}.jsonl").write_text("\n".join(map(json.dumps, records)))
    model_args = f"engine=scripted,small={folder}/small.jsonl,large={folder}/large.jsonl,max_open_samples=2"
    task = ("--tasks", NAME, "--include_path", str(write_task(folder / "tasks", ROWS)))
    return ["compare", *task, "--min_confidence", "0.5", "--model_args", model_args]


@pytest.fixture(scope="module")
def undisturbed(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of one command."""
    folder = tmp_path_factory.mktemp("undisturbed")
    command = Command(folder, folder / "log", *given, "--output_path", str(folder / "out"), name="lmms-eval-mai")
    code, text = command.end()
    assert code == 0, text
    return folder / "out"


def found(output: Path) -> dict[str, dict[str, Any]]:
    return {method: finished_run(output / "models" / method / NAME) for method in METHODS}


def scores(output: Path) -> dict[str, float]:
    """Return the number of right answers of each method. Each must be a row of a report, with its seconds."""
    runs = Runs.read([output])
    made = {run.file.relative_to(output).parts[1]: run for run in runs.select()}
    assert made.keys() == {*METHODS} and all(spent(run)["wall_s"] for run in made.values())
    return {name: run.samples.score.sum() for name, run in made.items()}


@pytest.mark.slow
def test_each_method_has_its_own_calls_its_score_and_its_seconds(undisturbed: Path) -> None:
    calls = {name: shared_calls(run) for name, run in found(undisturbed).items()}
    assert calls == {
        **dict.fromkeys(("small", "large", "large_r"), (0, ROWS)),
        "full_rt": (0, 2 * ROWS),
        "mai": (0, 36),  # 12 documents: 2 calls each, 8 also think, and 4 of these are transferred
        "mai_confidence": (0, 16),  # the large model is unsure of 3, and 1 of these is transferred
        "own_thinking": (0, 15),
    }
    right = {"small": 3, "large": 9, "large_r": 12, "full_rt": 10, "mai": 10, "mai_confidence": 10, "own_thinking": 12}
    assert scores(undisturbed) == right
    written = {file.name for file in undisturbed.iterdir()}
    assert written == {"models", "calls-0of1.jsonl", "report.md", "report.html"}


@pytest.mark.slow
def test_killed_and_resumed_it_has_the_same_results_and_makes_no_call_twice(
    undisturbed: Path, given: list[str], tmp_path: Path, capsys: Any
) -> None:
    output = tmp_path / "out"
    process = Command(tmp_path, tmp_path / "log", *given, "--output_path", str(output), name="lmms-eval-mai").process
    assert strike(process, output, random.Random().randint(30, 130), signal.SIGKILL)
    code, _, text = run_command(capsys, *given, "--output_path", output)
    assert code == 0, text
    assert found(output) == found(undisturbed) and scores(output) == scores(undisturbed)
    lines = [
        file.read_text().count('"call":') for file in (output / "calls-0of1.jsonl", undisturbed / "calls-0of1.jsonl")
    ]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_a_task_whose_prompt_asks_for_a_thinking_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert "shapes_s" in refusal(capsys, "compare", "--pair", "demo", "--tasks", "shapes_r", "--output_path", tmp_path)
