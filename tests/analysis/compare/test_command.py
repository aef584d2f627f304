"""The command `lmms-eval-mai compare`: the runs of a table on scripted engines beside single ones."""

import random
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from support.compare import RUNS, arguments, finished_run, shared_calls, without_marks
from support.own_command import refusal, run_command, run_lmms_eval
from support.processes import Command, scripts, strike

ROWS = 12


@pytest.fixture(scope="module")
def model_args(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**scripts(tmp_path_factory.mktemp("scripts"), "pope_s", ROWS, seconds=0.1), "max_open_samples": "2"}


@pytest.fixture(scope="module")
def undisturbed(drawn_data: Path, model_args: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of Table 10 and of a method of the user, made by one command."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, text = start(drawn_data, folder, model_args).end()
    assert code == 0, text
    (folder / "log").write_text(text)
    return folder / "out"


def start(data: Path, folder: Path, model_args: dict[str, str]) -> Command:
    given = arguments(model_args, folder / "out")
    return Command(data, folder / "log.txt", *given, name="lmms-eval-mai")


def runs(output: Path) -> dict[str, dict[str, Any]]:
    return {name: finished_run(output / "models" / name) for name in RUNS}


@pytest.mark.slow
def test_one_command_makes_all_runs_of_a_table_and_of_a_file_and_prints_them(undisturbed: Path) -> None:
    found = runs(undisturbed)
    assert {name: shared_calls(run) for name, run in found.items()} == {
        "small/pope_s": (0, 12),
        "small/pope_r": (0, 12),
        "large/pope_s": (0, 12),
        "full_rt/pope_s": (12, 24),
        "mai/pope_s": (36, 36),  # 12 documents: 2 calls each, 8 also think, and 4 of these are transferred
        "think_first/pope_s": (32, 32),
    }
    assert (undisturbed / "calls-0of1.jsonl").read_text().count('"call":') == 48
    written = {file.name for file in undisturbed.iterdir()}
    assert written == {"models", "calls-0of1.jsonl", "report.md", "report.html"}
    text = (undisturbed.parent / "log").read_text()
    assert "models/mai/pope_s" in text and "think_first" in text.split("\nMethods: ")[1]
    assert "\nMethods: " in text and "Table 10" not in text and "Table 10" in (undisturbed / "report.md").read_text()
    assert text.count("small is ready") == 1 and text.count("large is ready") == 1
    assert "mai_cascade method=" not in text  # no table of a single run


@pytest.mark.slow
def test_runs_are_equal_to_those_of_the_printed_single_commands(
    undisturbed: Path, model_args: dict[str, str], in_drawn_data: Path, tmp_path: Path, capsys: Any
) -> None:
    _, text, _ = run_command(capsys, *arguments(model_args, tmp_path / "single", "--dry-run"))
    assert text.splitlines()[-1].startswith("# 6 runs")
    commands = [shlex.split(line) for line in text.split("\n") if line.startswith("lmms-eval ")]
    assert len(commands) == len(RUNS) and not (tmp_path / "single").exists()
    for name, command in list(zip(RUNS, commands, strict=True))[-2:]:  # MAI, and the method of the user
        assert run_lmms_eval(capsys, *command[1:])[0] == 0
        single = without_marks(finished_run(tmp_path / "single" / "models" / name))
        assert without_marks(finished_run(undisturbed / "models" / name)) == single
    _, text, _ = run_command(capsys, *arguments(model_args, undisturbed, "--dry-run"))
    assert len(re.findall(r"^# .*, finished$", text, re.MULTILINE)) == len(RUNS)


@pytest.mark.slow
def test_command_that_is_killed_has_the_results_of_an_undisturbed_one(
    undisturbed: Path, model_args: dict[str, str], in_drawn_data: Path, tmp_path: Path, capsys: Any
) -> None:
    """It continues in this process."""
    output = tmp_path / "out"
    process = start(in_drawn_data, tmp_path, model_args).process
    assert strike(process, output, random.Random().randint(40, 80), signal.SIGKILL)
    kept = {file: file.stat().st_mtime_ns for file in (output / "models").rglob("*.json*")}
    assert 0 < sum(file.name.endswith("_results.json") for file in kept) < len(RUNS)
    code, _, text = run_command(capsys, *arguments(model_args, output))
    assert code == 0, text
    assert runs(output) == runs(undisturbed)  # with the same marks of shared calls
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # they were not made again
    assert (output / "calls-0of1.jsonl").read_text().count('"call":') == 48
    assert {file.name for file in output.iterdir()} == {file.name for file in undisturbed.iterdir()}


@pytest.mark.slow  # it loads lmms-eval's tasks
def test_decoding_arguments_that_no_task_can_have_are_refused(capsys: Any, tmp_path: Path, in_drawn_data: Path) -> None:
    model_args = ",".join(f"{name}={value}" for name, value in scripts(tmp_path / "scripts", "pope_s", 1).items())
    given = ("--benchmarks", "pope", "--gen_kwargs", "max_tokens=3", "--model_args", model_args)
    assert "max_tokens" in refusal(capsys, "compare", "--output_path", tmp_path / "out", *given)
    assert not (tmp_path / "out").exists()
