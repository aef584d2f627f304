"""Starts engine cores quickly, in tests only: they are forked from a process that has imported vLLM.

A core that vLLM spawns imports vLLM again, which takes ten seconds of CPU time. A forked core is otherwise the same: it
has the environment and the arguments that vLLM gives it, and it is a process below the one that starts the engine.
The tests of the README's command start their engines in vLLM's own way.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess

SERVER = multiprocessing.get_context("forkserver")

PRELOADED = [
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3_vl",
]


class _Core(ForkServerProcess):
    """Runs with the environment of the process that starts it, like a spawned process."""

    _environment: dict[str, str]

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        import torch

        os.environ.clear()
        os.environ.update(self._environment)
        # OpenMP read the variable when the server imported torch.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        super().run()


class _Context(ForkServerContext):
    Process = _Core  # type: ignore[assignment]


def fork_cores() -> None:
    """Let vLLM fork the cores of this process's engines from its fork server, which starts now if it does not run."""
    SERVER.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    from vllm.v1.engine import coordinator, utils

    utils.get_mp_context = coordinator.get_mp_context = _Context
