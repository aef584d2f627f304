"""What this package uses of vLLM without a public way, and why. No other module does.

`tests/engines/test_vllm_internals.py` fails if one of these names is gone. Besides the functions below:

- the names `EngineCore` and `VLLM_DP_Coordinator` of vLLM's processes (`CORES`). A start that must end now has no
  engine object yet, so its processes are found by their names.
- the path of vLLM's `UniProcExecutor` (`ONE_PROCESS`). On a CPU vLLM replaces the public name "uni" by two processes,
  which wait for each other in busy loops. It needs two to bind threads to cores, and we bind none.
"""

import multiprocessing
import threading
from multiprocessing.process import BaseProcess
from typing import Any

CORES = ("EngineCore", "VLLM_DP_Coordinator")
"""How the names of vLLM's processes begin. The workers of a core are the core's own children."""
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

_registering = threading.Lock()


def started_by_vllm() -> list[BaseProcess]:
    """Return the processes that vLLM has started in this process, of all engines."""
    return [process for process in multiprocessing.active_children() if process.name.startswith(CORES)]


def processes_of(llm: Any) -> list[BaseProcess]:
    """Return the processes that an `AsyncLLM` has started: its cores, and the coordinator of its replicas.

    `AsyncLLM.shutdown` does not wait for the end of a process that it kills. Its GPU memory is free only then.
    """
    resources = llm.engine_core.resources
    coordinator = [] if resources.coordinator is None else [resources.coordinator.proc]
    return [*resources.engine_manager.processes, *coordinator]


def stop_reading(llm: Any) -> None:
    """Cancel the task that reads the core's answers. It would report the end of the core, which we want, as a crash."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def one_prometheus_logger_at_a_time() -> Any:
    """Return vLLM's Prometheus logger with a lock, for `AsyncLLM(stat_loggers=...)`.

    A new logger removes the metrics of all engines of this process from their registry and adds its own. Without the
    lock, two engines that start at the same time may both add a metric, and one start fails. Statistics cannot be
    switched off: vLLM reports the times of a request only with them.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class OneAtATime(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no types here
        def __init__(self, *arguments: Any, **named: Any) -> None:
            with _registering:
                super().__init__(*arguments, **named)

    return OneAtATime


def image_placeholder(model_config: Any, special: list[str]) -> str | None:
    """Return the text that stands for an image in a prompt. None: it is a special token, or there is none.

    In some models it is ordinary text (InternVL: `<image>`), which a document may have too (`renderer.py`).
    """
    from vllm.model_executor.model_loader import get_model_cls

    model: Any = get_model_cls(model_config)
    placeholder: str | None = model.get_placeholder_str("image", 1)
    return None if placeholder is None or any(token in placeholder for token in special) else placeholder
