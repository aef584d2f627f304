"""The metrics of engines that start at the same time."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.engines import Running

from lmms_eval_mai.engines.vllm.metrics import prometheus_logger


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_engines_that_start_at_the_same_time_register_their_metrics_one_after_the_other(
    vllm: Running, hasty_threads: None
) -> None:
    config = vllm.engine._started.llm.vllm_config
    with ThreadPoolExecutor(4) as pool:  # a metric that is registered twice is an error
        loggers = list(pool.map(lambda _: prometheus_logger()(config), range(20)))
    assert len(loggers) == 20


def test_engine_has_this_logger(vllm: Running) -> None:
    names = [type(logger).__name__ for logger in vllm.engine._started.llm.logger_manager.stat_loggers]
    assert "OneAtATime" in names and "PrometheusStatLogger" not in names
