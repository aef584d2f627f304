"""vLLM's Prometheus metrics, registered by one engine at a time."""

import threading
from typing import Any

_registering = threading.Lock()


def prometheus_logger() -> Any:
    """Return the class of vLLM's Prometheus logger under a lock, for `AsyncLLM(stat_loggers=...)`.

    A new logger removes the metrics of all engines of this process from their registry and adds its own. Without the
    lock, two engines that start at the same time may both add a metric, and one start fails.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class OneAtATime(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types here
        def __init__(self, *arguments: Any, **named: Any) -> None:
            with _registering:
                super().__init__(*arguments, **named)

    return OneAtATime
