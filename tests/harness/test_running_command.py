"""What is read from lmms-eval's running command, and what happens if lmms-eval changes."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lmms_eval.__main__ import cli_evaluate
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.loggers import EvaluationTracker
from support.pope_scripts import record

from lmms_eval_mai.harness import figures_file
from lmms_eval_mai.harness.running_command import configurations, results_file
from lmms_eval_mai.run.journal.removal import finish_removal

EVALUATION = "evaluator.py:simple_evaluate"


def inside(function: Callable[[], Any], caller: str, **local_variables: Any) -> Any:
    """Call `function` from a function of lmms-eval (`file:name`) with these local variables."""
    file, _, name = caller.partition(":")
    assignments = "".join(f"    {name} = values[{name!r}]\n" for name in local_variables)
    source = f"def {name}(function, values):\n{assignments}    return function()\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, f"/site-packages/lmms_eval/{file}", "exec"), namespace)
    return namespace[name](function, local_variables)


def test_lmms_eval_still_has_the_variables_that_are_read_and_reads_batch_sizes_after_the_evaluation() -> None:
    assert "args_list" in cli_evaluate.__code__.co_varnames
    function = inspect.unwrap(simple_evaluate)
    assert {"evaluation_tracker", "datetime_str", "gen_kwargs"} <= {*function.__code__.co_varnames}
    before, after = inspect.getsource(function).split(" evaluate(")
    assert "lm.batch_sizes" in after and "lm.batch_sizes" not in before


def test_number_of_configurations_is_read_from_the_command() -> None:
    assert configurations() is None
    assert inside(configurations, "models/__main__.py:cli_evaluate", args_list=["a"]) is None
    assert inside(configurations, "__main__.py:cli_evaluate", args_list=["a", "b"]) == 2
    single = lambda: inside(configurations, "__main__.py:cli_evaluate_single")  # noqa: E731
    assert inside(single, "__main__.py:cli_evaluate", args_list=["a", "b"]) == 2
    assert single() == inside(configurations, "__main__.py:other", args_list=None) == 1


def test_name_of_the_results_file_is_that_of_the_running_evaluation(tmp_path: Path) -> None:
    assert results_file() is None
    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name_sanitized = "a__b"
    given = {"evaluation_tracker": tracker, "datetime_str": "20261122_10:00:00"}
    found = inside(results_file, EVALUATION, **given)
    tracker.save_results_aggregated({}, {}, given["datetime_str"])
    assert [found] == list(tmp_path.rglob("*_results.json"))
    for without_file in (EvaluationTracker(), None):
        assert inside(results_file, EVALUATION, **{**given, "evaluation_tracker": without_file}) is None


@pytest.mark.parametrize(
    ("caller", "local_variables"),
    [
        (EVALUATION, {"evaluation_tracker": SimpleNamespace(folder="out"), "datetime_str": "1"}),
        (EVALUATION, {"evaluation_tracker": SimpleNamespace(output_path="out"), "datetime_str": "1"}),
        (EVALUATION, {"evaluation_tracker": EvaluationTracker(output_path="out")}),
        ("__main__.py:cli_evaluate", {}),
    ],
)
def test_unknown_layout_of_the_evaluation_is_an_error_of_its_own(caller: str, local_variables: dict[str, Any]) -> None:
    with pytest.raises(LookupError):
        inside(results_file, caller, **local_variables)


def test_command_whose_results_file_is_not_found_keeps_the_journal_and_warns(
    evaluate: Any, write_script: Any, tmp_path: Path, warnings: list[str]
) -> None:
    script = write_script("both", [record("pope_s", 0, "short", "[[Yes]]")])
    given = {"engine": "scripted", "small": script, "large": script, "journal": tmp_path / "journal"}
    tracker = SimpleNamespace(general_config_tracker=EvaluationTracker().general_config_tracker)
    options = {"limit": 1, "evaluation_tracker": tracker}
    inside(lambda: evaluate(["pope_s"], options, **given), "__main__.py:cli_evaluate")
    assert [warning for warning in warnings if "the figures of this run are not written" in warning]
    (journal,) = (tmp_path / "journal").iterdir()
    finish_removal(journal)  # as at the end of the process
    assert journal.exists()


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
