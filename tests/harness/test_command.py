"""lmms-eval's command with our model: exit codes, messages, and the call store until the results are saved. lmms-eval
alone catches every exception and exits with 0."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from lmms_eval.loggers import EvaluationTracker
from lmms_eval.utils import sanitize_model_name, simple_parse_args_string
from support.own_command import run_lmms_eval
from support.pair import exit_of, pope_scripts
from support.processes import Command, lines_of, scripts, wait_for_lines
from support.servers import free_port

from lmms_eval_mai.analysis.runs.folders import read_runs
from lmms_eval_mai.errors import ArgumentError, MaiError
from lmms_eval_mai.harness.command import configurations, report_errors_to_user
from lmms_eval_mai.harness.saved import run_name
from lmms_eval_mai.run.config import parse

HINT = "To resume, run the same command with the same models again."


def model_args(**given: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in given.items())


def test_ctrl_c_ends_the_command_with_its_processes_and_keeps_the_finished_calls(
    command: type[Command], in_drawn_data: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    given = {**scripts(tmp_path, "pope_s", 12, seconds=0.5), "max_open_samples": 1, "store": store}
    line = ("--model", "mai_cascade", "--tasks", "pope_s", "--model_args", model_args(**given))
    stopped = command(in_drawn_data, tmp_path / "log", *line)
    assert wait_for_lines(stopped.process, store, 8)
    os.kill(stopped.process.pid, signal.SIGINT)
    code, text = stopped.end()
    assert code == 130 and "Traceback" not in text and HINT in text and len(lines_of(store)) >= 8
    assert f"mai_cascade: stopped by Ctrl-C. All finished calls are in {store}/" in text


def test_a_list_of_configurations_goes_on_after_a_wrong_one_and_each_run_has_its_folder_and_its_table(
    command: type[Command], in_drawn_data: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {**pope_scripts(tmp_path, "pope_s"), "store": str(tmp_path / "store")}
    common = {"model": "mai_cascade", "tasks": "pope_s", "log_samples": True, "output_path": str(tmp_path / "out")}
    methods = (model_args(method="both"), model_args(**given), given | {"method": "large", "small_slots": 3})
    runs = [common | {"model_args": one} for one in methods]
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(runs))
    code, text = command(in_drawn_data, tmp_path / "log", "--config", str(tmp_path / "runs.yaml")).end()
    assert code == 0 and "method=both is unknown" in text and text.replace(" ", "").count("|pope_accuracy|") == 2
    assert list((tmp_path / "store").iterdir()) == []
    files = sorted((tmp_path / "out").rglob("*_results.json"), key=lambda file: file.name)  # by time
    names = [json.loads(file.read_text())["model_name"] for file in files]
    assert names == [file.parent.name for file in files]  # each method has its folder
    assert [name.rpartition("-")[2] for name in names] == ["mai", "large"]
    assert text.rindex("Throughput Summary") < text.index("mai_cascade method=")  # our tables come last
    assert text.count("mai_cascade method=") == 2


@pytest.mark.slow
def test_a_folder_of_results_that_cannot_be_written_is_refused_before_an_engine_starts(
    in_drawn_data: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "out")
    given = model_args(**pope_scripts(tmp_path, "pope_s"), store=tmp_path / "store")
    line = ("--model", "mai_cascade", "--tasks", "pope_s", "--model_args", given, "--output_path", path)
    code, text = run_lmms_eval(capsys, *line)
    assert code == 1 and "Traceback" not in text and "starting small" not in text
    assert f"--output_path {path} cannot be written" in text


@pytest.mark.long
def test_ranks_share_the_documents_and_padding_is_answered_without_a_call(
    command: type[Command], in_drawn_data: Path, tmp_path: Path
) -> None:
    given = {**pope_scripts(tmp_path, "pope_s"), "store": tmp_path / "store"}
    line = ["--model", "mai_cascade", "--model_args", model_args(**given), "--tasks", "pope_s", "--limit", "5"]
    line += ["--output_path", str(tmp_path / "out"), "--log_samples"]
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        command(in_drawn_data, tmp_path / rank, *line, environment={**group, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    ends = [command.end() for command in ranks]
    text = "".join(printed for _, printed in ends)
    assert [code for code, _ in ends] == [0, 0], text
    # Rank 0 has documents 0, 2 and 4; rank 1 has 1 and 3, and one request of padding. The table is that of the run.
    (cells,) = [line.split() for line in text.splitlines() if line.startswith("pope_s ")]
    assert cells[1:6] == ["5", "40.0", "40.0", "20.0", str(5 + 3)] and ", 2 ranks\n" in text
    (file,) = (tmp_path / "out").rglob("*_samples_pope_s.jsonl")
    samples = [json.loads(line) for line in file.read_text().split("\n") if line]
    assert {s["doc_id"]: s["token_counts"][0]["exit"] for s in samples} == {i: exit_of(i) for i in range(5)}
    assert list((tmp_path / "store").iterdir()) == []  # rank 0 removes the files of all ranks


PROGRAM = """
import gc, os, sys
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.tasks import TaskManager
from lmms_eval_mai import MaiCascade, task_dir

tasks = TaskManager(include_path=str(task_dir()), include_defaults=False)
gc.freeze()  # else each process takes 1 s more to end
for way in ("good", "failing", "command"):  # each in a process of its own
    if child := os.fork():
        print(way, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    if way == "command":  # it writes its results before it ends
        sys.argv = ["lmms-eval"]
    simple_evaluate(MaiCascade(**{given}, store=way), tasks=["shapes_s"], task_manager=tasks, limit=3)
    if way == "failing":
        raise SystemError
    break
"""


@pytest.mark.slow
def test_the_end_of_a_process_removes_the_store_unless_an_exception_or_a_command_without_results_ends_it(
    tmp_path: Path,
) -> None:
    program = PROGRAM.replace("{given}", repr(scripts(tmp_path, "shapes_s", 3)))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    ends = {"good": 0, "failing": 1, "command": 0}
    assert [line for line in done.stdout.splitlines() if line.startswith(tuple(ends))] == [
        f"{way} {code}" for way, code in ends.items()
    ], done.stderr
    assert [len(list((tmp_path / way).iterdir())) for way in ends] == [0, 1, 1]


@pytest.mark.parametrize(
    ("argv", "module", "count"),
    [
        (["/site-packages/lmms_eval/__main__.py", "eval", "--config=one.yaml"], "lmms_eval", 1),
        (["lmms-eval", "--config", "two.yaml", "--limit", "1"], None, 2),
        (["/bin/lmms-eval-mai", "compare"], None, 0),
        (["/site-packages/lmms_eval/tui/cli.py"], "lmms_eval.tui", 0),
    ],
)
def test_the_command_is_known_by_the_main_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: list[str], module: str | None, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text("tasks: pope_s")
    Path("two.yaml").write_text("[{tasks: pope_s}, {tasks: pope_r}]")
    main = ModuleType("__main__")
    main.__package__ = module
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", argv)
    assert configurations() == count


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("action", "code", "traceback"),
    [
        (raising(ArgumentError("An argument is wrong.")), 1, False),
        (raising(ZeroDivisionError()), 1, True),
        (raising(KeyboardInterrupt()), 130, False),
        (lambda: signal.raise_signal(signal.SIGTERM), 143, False),
        (lambda: signal.raise_signal(signal.SIGHUP), 129, False),
    ],
)
def test_an_error_ends_the_command_with_its_exit_code_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, action: Callable[[], None], code: int, traceback: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["lmms-eval"])
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # `nohup` may have ignored SIGHUP
    with pytest.raises(SystemExit) as raised, report_errors_to_user(lambda: "Type this."):
        action()
    printed = capsys.readouterr().err
    assert raised.value.code == code and printed.count("mai_cascade: ") == 1 and "Type this." in printed
    assert ("Traceback" in printed) is traceback


def test_an_error_in_library_use_is_an_exception_that_ends_with_the_hint() -> None:
    with pytest.raises(ArgumentError) as raised, report_errors_to_user(lambda: "Type this."):
        raise ArgumentError("invalid")
    assert str(raised.value) == "invalid\nType this."
    for error in (KeyboardInterrupt(), ZeroDivisionError()):
        with pytest.raises(type(error)), report_errors_to_user(lambda: "Type this."):
            raise error


def save(tracker: EvaluationTracker, results: dict[str, Any]) -> None:
    """Save results as lmms-eval's command does."""
    samples = results.pop("samples")
    tracker.save_results_aggregated(results, samples, "10:00")
    for task, lines in samples.items():
        tracker.save_results_samples(task, lines)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["results", "results in the command", "samples", "samples of two runs"])
def test_results_that_lmms_eval_did_not_save_whole_are_an_error_and_keep_the_store(
    evaluate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, way: str
) -> None:
    scripts, store = pope_scripts(tmp_path, "pope_s"), tmp_path / "store"
    monkeypatch.setattr(sys, "argv", ["lmms-eval" if "command" in way else "pytest"])
    tracker = EvaluationTracker(output_path=str(tmp_path))
    results = evaluate(["pope_s"], {"evaluation_tracker": tracker}, **scripts, store=store, model_name="a/b")
    place = tmp_path / "a__b" / f"10-00_{'samples_pope_s.jsonl' if 'samples' in way else 'results.json'}"
    if "two" in way:
        place.parent.mkdir()
        place.write_text("{}\n")
    else:
        place.mkdir(parents=True)  # lmms-eval cannot write it, and logs a warning
    with pytest.raises((MaiError, SystemExit)) as raised:
        save(tracker, results)
    text = capsys.readouterr().err if "command" in way else str(raised.value)
    assert f"cannot write its results to {place} " in text and HINT in text
    assert ("another --output_path" in text) is ("command" in way)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    evaluate(["pope_s"], **scripts, store="off")  # another evaluation, which ends this one
    assert len(list(store.iterdir())) == 1


def test_a_run_whose_files_would_have_the_names_of_another_runs_files_gets_a_folder_of_its_own(
    evaluate: Any, tmp_path: Path
) -> None:
    scripts = pope_scripts(tmp_path, "pope_s")
    for limit in (3, 4):
        tracker = EvaluationTracker(output_path=str(tmp_path))
        options = {"evaluation_tracker": tracker, "limit": limit}
        save(tracker, evaluate(["pope_s"], options, **scripts, store="off", model_name="same"))
    runs = read_runs([tmp_path]).runs
    assert sorted(run.documents for run in runs) == [3, 4] and len({run.file.parent for run in runs}) == 2


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("", "mai_cascade-Qwen3-VL-2B-Instruct+Qwen3-VL-8B-Instruct-mai"),
        ("pair=demo,method=own_thinking", "mai_cascade-demo-large-own_thinking"),
        ("small=http://me:secret@node:1/v1,method=small", "mai_cascade-node:1-small"),
        ("large=http://node:1/v1,large_model=a/b,method=large", "mai_cascade-a-b-large"),
        ("engine=transformers,transfer=sparse,method=full_rt,model_name=mine", "mine"),
    ],
)
def test_a_run_without_a_name_is_named_by_its_models_and_by_what_it_does_with_them(arguments: str, name: str) -> None:
    found = run_name(parse(simple_parse_args_string(arguments)))
    assert found == name and "/" not in sanitize_model_name(found)
