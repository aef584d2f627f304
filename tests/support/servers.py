"""Real vLLM servers on loopback."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

SETTINGS = (
    "--dtype=float32 --max-model-len=2048 --block-size=32 --enforce-eager --kv-cache-memory-bytes=67108864 "
    "--enable-prompt-tokens-details --distributed-executor-backend=vllm.v1.executor.uniproc_executor.UniProcExecutor"
)
THREADS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}


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
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--model", str(self.model)]
        line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *address, *SETTINGS.split()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                line, stdout=log, stderr=log, env={**os.environ, **THREADS}, start_new_session=True
            )

    def wait(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"):
                return
            time.sleep(0.3)
        raise AssertionError(self.log.read_text()[-3000:])

    def kill(self) -> None:
        """Kill all its processes: the engine core outlives a killed server."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
