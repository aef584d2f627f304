"""What is read from lmms-eval's running command, and what happens if lmms-eval changes."""

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from lmms_eval.loggers import EvaluationTracker

from lmms_eval_mai.harness import figures_file
from lmms_eval_mai.harness.running_command import Command, results_file, results_written, running_command


def source_of(module: str) -> str:
    """Return the source of a module of lmms-eval without importing the module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def function_code(source: str, name: str) -> CodeType:
    (code,) = [
        constant
        for constant in compile(source, "<source>", "exec").co_consts
        if isinstance(constant, CodeType) and constant.co_name == name
    ]
    return code


def inside_command(
    function: Callable[[], Any],
    file: str = "lmms_eval/__main__.py",
    command: str = "cli_evaluate",
    **local_variables: Any,
) -> Any:
    """Call `function` from a function that looks like lmms-eval's command with these local variables."""
    assignments = "".join(f"    {name} = values[{name!r}]\n" for name in local_variables)
    source = f"def {command}(function, values):\n{assignments}    return function()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, f"/site-packages/{file}", "exec"), namespace)
    return namespace[command](function, local_variables)


def test_lmms_evals_command_still_has_the_variables_that_are_read() -> None:
    names = function_code(source_of("lmms_eval.__main__"), "cli_evaluate").co_varnames
    assert {"args", "args_list"} <= set(names)


def test_lmms_eval_still_reads_batch_sizes_after_the_evaluation() -> None:
    tree = ast.parse(source_of("lmms_eval.evaluator"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "simple_evaluate"]
    evaluated = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "evaluate"
    ]
    read = [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "lm.batch_sizes"
    ]
    assert evaluated and read and max(evaluated) < min(read)


def test_library_use_is_not_a_command_and_its_results_need_no_check() -> None:
    assert running_command() is None and results_written(None, None) is None
    args = SimpleNamespace(output_path="out")
    assert inside_command(running_command, file="other/__main__.py", args=args, args_list=[args]) is None


def test_output_path_and_number_of_configurations_are_read_from_the_command() -> None:
    args = SimpleNamespace(output_path="out")
    found = inside_command(running_command, args=args, args_list=[args, args])
    assert found == Command(output_path="out", configurations=2, known=True)


@pytest.mark.parametrize(
    "local_variables",
    [
        {},
        {"arguments": SimpleNamespace(output_path=None), "args_list": []},
        {"args": SimpleNamespace(output_path=None), "configurations": []},
        {"args": SimpleNamespace(output_path="out"), "args_list": [], "command": "run_evaluation"},
    ],
)
def test_unknown_layout_of_the_command_means_that_the_results_are_not_written(local_variables: dict[str, Any]) -> None:
    command = inside_command(running_command, **local_variables)
    assert not command.known
    written = results_written(command, None)
    assert written is not None and written() is False


def test_results_are_written_when_the_results_file_exists(tmp_path: Path) -> None:
    file = tmp_path / "new_results.json"
    written = results_written(Command(str(tmp_path), 1, known=True), file)
    assert written is not None and not written()
    file.touch()
    assert written()
    unknown_name = results_written(Command(str(tmp_path), 1, known=True), None)
    assert unknown_name is not None and not unknown_name()
    only_printed = results_written(Command(None, 1, known=True), None)
    assert only_printed is not None and only_printed()


def inside_evaluation(function: Callable[[], Any], **local_variables: Any) -> Any:
    return inside_command(function, "lmms_eval/evaluator.py", "simple_evaluate", **local_variables)


def test_name_of_the_results_file_is_that_of_the_running_evaluation(tmp_path: Path) -> None:
    assert results_file() is None
    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name_sanitized = "a__b"
    given = {"evaluation_tracker": tracker, "datetime_str": "20261122_10:00:00"}
    found = inside_evaluation(results_file, **given)
    tracker.save_results_aggregated({}, {}, given["datetime_str"])
    assert [found] == list(tmp_path.rglob("*_results.json"))
    assert inside_evaluation(results_file, **{**given, "evaluation_tracker": EvaluationTracker()}) is None
    assert inside_evaluation(results_file, **{**given, "evaluation_tracker": None}) is None


@pytest.mark.parametrize(
    "local_variables",
    [
        {"evaluation_tracker": SimpleNamespace(folder="out"), "datetime_str": "1"},
        {"evaluation_tracker": SimpleNamespace(output_path="out"), "datetime_str": "1"},
        {"evaluation_tracker": EvaluationTracker(output_path="out")},
    ],
)
def test_unknown_layout_of_the_evaluation_is_a_warning_and_no_error(
    local_variables: dict[str, Any], warnings: list[str]
) -> None:
    assert inside_evaluation(results_file, **local_variables) is None
    assert len(warnings) == 1 and "the figures of this run are not written" in warnings[0]


def test_figures_that_cannot_be_written_are_a_warning_and_no_error(tmp_path: Path, warnings: list[str]) -> None:
    results, file = tmp_path / "1_results.json", tmp_path / "1_mai_cascade.json"
    figures_file.write_beside(results, {"mode": "cascade"})
    figures_file.write_waiting()
    assert not file.exists()  # no figures without results
    results.touch()
    file.mkdir()
    figures_file.write_waiting()
    assert warnings == [f"mai_cascade: the figures of the run cannot be written to {file} (Is a directory)."]
    file.rmdir()
    figures_file.write_waiting()
    assert not file.exists()  # one attempt
