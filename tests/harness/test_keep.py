"""Engines that stay up between several calls of `simple_evaluate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.logs import logged
from support.pope_scripts import counts, exit_of, pope_scripts

from lmms_eval_mai import ArgumentError, MaiCascade, TooManyErrors

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate_model(task_manager: Any, in_drawn_data: Path) -> Evaluate:
    from lmms_eval.evaluator import simple_evaluate

    def run(model: MaiCascade, **options: Any) -> dict[str, Any]:
        results = simple_evaluate(
            model=model, tasks=["pope_s"], task_manager=task_manager, batch_size=1, log_samples=True, **options
        )
        assert results is not None
        return results

    return run


@pytest.fixture
def scripts(write_script: Any) -> dict[str, str]:
    return pope_scripts(write_script, "pope_s")


def starts(messages: list[str]) -> int:
    return sum("small is ready" in text for text in messages)


def check(results: dict[str, Any]) -> None:
    """Check that a run has its own scores and figures, and no others."""
    assert results["results"]["pope_s"]["pope_accuracy,none"] == 1.0
    assert [trace["exit"] for trace in counts(results, "pope_s")] == [exit_of(number) for number in range(12)]
    assert results["usage"]["by_source"]["small"]["n_api_calls"] == 12 + 8


@pytest.mark.slow
def test_kept_engines_start_once_until_they_are_closed_or_an_evaluation_stops(
    evaluate_model: Evaluate, scripts: dict[str, str], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    with logged() as messages:
        model = MaiCascade(**scripts, journal=str(journal), keep=True)
        for _ in range(2):
            check(evaluate_model(model))
            assert list(journal.iterdir()) == []  # each run removes its own journal
        assert starts(messages) == 1
        with pytest.raises(ArgumentError, match="temprature"):
            evaluate_model(model, gen_kwargs="temprature=1")
        check(evaluate_model(model))
        assert starts(messages) == 2
        model.close()
        model.close()
        check(evaluate_model(model))
        assert starts(messages) == 3
        model.close()


@pytest.mark.slow
def test_engines_start_once_inside_a_with_block_and_stop_at_its_end(
    evaluate_model: Evaluate, scripts: dict[str, str]
) -> None:
    with logged() as messages:
        with MaiCascade(**scripts, journal="off") as model:
            check(evaluate_model(model))
            check(evaluate_model(model))
        assert starts(messages) == 1
        for count in (2, 3):  # outside the block they stop after each evaluation
            check(evaluate_model(model))
            assert starts(messages) == count


@pytest.mark.slow
def test_failed_samples_of_an_evaluation_that_stopped_do_not_count_in_the_next_one(
    evaluate_model: Evaluate, write_script: Any
) -> None:
    # The script has no answers to the last document, so an evaluation of all 12 documents stops.
    with MaiCascade(**pope_scripts(write_script, "pope_s", rows=11), journal="off") as model:
        with pytest.raises(TooManyErrors, match="1 of 12 samples failed"):
            evaluate_model(model)
        results = evaluate_model(model, limit=11)
    assert results["results"]["pope_s"]["pope_accuracy,none"] == 1.0
    assert model.figures["tasks"]["pope_s"]["samples"] == 11
