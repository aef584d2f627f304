"""Real vLLM servers on loopback, started with vLLM's own command."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Server:
    """One API server of a checkpoint, in fp32."""

    model: Path
    log: Path
    core: int
    """CPU core of the server. Two servers must not share a core."""
    port: int = field(default_factory=free_port)
    arguments: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        line += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--max-model-len", "2048"]
        line += ["--block-size", "32", "--enforce-eager", "--kv-cache-memory-bytes", str(64 << 20)]
        line += ["--enable-prompt-tokens-details", *self.arguments]
        cores = sorted(os.sched_getaffinity(0))
        environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": str(cores[self.core % len(cores)])}
        with self.log.open("ab") as log:
            # Its own process group, so that `kill` ends all its processes: the engine core outlives a killed server.
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, env={**environment, "OMP_NUM_THREADS": "1"}, start_new_session=True
            )

    def wait(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                assert self.process is None or self.process.poll() is None, self.log.read_text()[-3000:]
                time.sleep(0.3)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
