"""Real vLLM servers on loopback, each in a process that has imported vLLM."""

import contextlib
import os
import random
import runpy
import signal
import socket
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from support.processes import start_process

UNIPROC_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def free_port() -> int:
    """Return a port for a server that starts later. It is below those that Linux itself gives to programs (32768 to
    60999), so no other program gets it by chance."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@dataclass
class Server:
    """One API server of a checkpoint, in fp32."""

    model: Path
    log: Path
    port: int = field(default_factory=free_port)
    arguments: tuple[str, ...] = ()
    process: BaseProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        line = ["--model", str(self.model), "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        line += ["--max-model-len", "2048", "--block-size", "32", "--enforce-eager"]
        line += ["--kv-cache-memory-bytes", str(64 << 20), "--enable-prompt-tokens-details"]
        line += ["--distributed-executor-backend", UNIPROC_EXECUTOR, *self.arguments]
        threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        self.process = start_process(self.log.parent, self.log, _serve, line, environment=threads)

    def wait(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                assert self.process is None or self.process.is_alive(), self.log.read_text()[-3000:]
                time.sleep(0.3)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        """Kill all its processes: the engine core outlives a killed server."""
        if self.process is not None:
            os.killpg(self.process.pid or 0, signal.SIGKILL)
            self.process.join()
            self.process = None


def _serve(line: list[str]) -> None:
    sys.argv = ["vllm.entrypoints.openai.api_server", *line]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
