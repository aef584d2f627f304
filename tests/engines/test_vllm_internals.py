"""The names of vLLM without a public way, which `engines/vllm/internals.py` lists, still exist."""

import importlib
import inspect
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running, question

from lmms_eval_mai.engines.vllm import internals


@pytest.fixture
def llm(vllm: Running) -> Any:
    return vllm.engine.started.llm


def test_processes_of_an_engine_are_found_by_their_names_and_from_its_object(llm: Any) -> None:
    found = internals.processes_of(llm)
    assert [process.name for process in found] == [internals.CORES[0]]
    assert set(found) <= set(internals.started_by_vllm()) <= set(multiprocessing.active_children())


def test_name_of_the_coordinator_is_that_of_vllm() -> None:
    from vllm.v1.engine import coordinator

    assert f'name="{internals.CORES[1]}"' in inspect.getsource(coordinator)
    assert "self.proc" in inspect.getsource(coordinator.DPCoordinator)


def test_task_that_reads_answers_can_be_cancelled(vllm: Running, llm: Any) -> None:
    vllm.generate(question(0))
    assert callable(llm.output_handler.cancel)


def test_executor_of_one_process_exists() -> None:
    module, _, name = internals.ONE_PROCESS.rpartition(".")
    assert inspect.isclass(getattr(importlib.import_module(module), name))


def test_prometheus_logger_is_the_one_that_an_engine_uses(llm: Any) -> None:
    kinds = [type(one).__name__ for one in llm.logger_manager.stat_loggers]
    assert "OneAtATime" in kinds and "PrometheusStatLogger" not in kinds


def test_placeholder_of_an_image_is_known_unless_it_is_a_special_token(llm: Any, tiny_internvl: Path) -> None:
    from lmms_eval_mai.engines.vllm.configuration import configure
    from lmms_eval_mai.run.config import parse

    assert internals.image_placeholder(llm.model_config, ["<|image_pad|>"]) is None
    config = parse({"mode": "small", "small": str(tiny_internvl), "small_engine": "vllm"}).small
    assert internals.image_placeholder(configure(config, None).vllm_config.model_config, []) == "<IMG_CONTEXT>"
