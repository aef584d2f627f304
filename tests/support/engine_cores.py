"""Starts engine cores quickly, in tests only: they are forked from a process that has imported vLLM.

A core that vLLM spawns imports vLLM again, which takes ten seconds of CPU time. A forked core is otherwise the same: it
has the environment and the arguments that vLLM gives it, and it is a process below the one that starts the engine.
The tests of the README's command start their engines in vLLM's own way.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from multiprocessing import connection, forkserver, util
from multiprocessing.context import ForkServerContext, ForkServerProcess

SERVER = multiprocessing.get_context("forkserver")

LIGHT = ["lmms_eval.__main__", "lmms_eval.evaluator", "lmms_eval.tasks", "lmms_eval_mai.harness.model"]
HEAVY = [
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3_vl",
    "vllm.entrypoints.openai.api_server",
    "lmms_eval_mai.engines.vllm.engine",
]


def preload(engines: bool) -> None:
    """Choose what the fork server imports. Has no effect once the server runs."""
    SERVER.set_forkserver_preload([*LIGHT, *(HEAVY if engines else ())])


class _Core(ForkServerProcess):
    """Runs with the environment of the process that starts it, like a spawned process."""

    _environment: dict[str, str]

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        import torch

        mark = {name: value for name, value in os.environ.items() if name.startswith("LMMS_EVAL_MAI")}
        os.environ.clear()
        os.environ.update(self._environment | mark)
        # OpenMP read the variable when the server imported torch.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        super().run()


class _Context(ForkServerContext):
    Process = _Core  # type: ignore[assignment]


def fork_cores() -> None:
    """Let vLLM fork the cores of this process's engines from its fork server, which starts now if it does not run."""
    preload(engines=True)
    forkserver.ensure_running()
    from vllm.v1.engine import coordinator, utils

    utils.get_mp_context = coordinator.get_mp_context = _Context


def serve_own_cores() -> None:
    """Fork a fork server now, while this process has one thread, and let vLLM fork the engine cores from it."""
    server = forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = connection.arbitrary_address("AF_UNIX")
        listener.bind(address)
        listener.listen()
        alive_r, alive_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(alive_w)
                with contextlib.suppress(SystemExit):
                    forkserver.main(os.dup(listener.fileno()), alive_r, None)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(alive_r)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid
    util.Finalize(None, _stop, args=(pid,), exitpriority=-100)  # the last thing that this process does
    fork_cores()


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
