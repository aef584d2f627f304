"""Starts a renderer process: the program of `renderer_child.py`, with a socket to this process."""

import os
import subprocess
import sys

from lmms_eval_mai.engines.vllm import shared_memory
from lmms_eval_mai.engines.vllm.logs import START_LOG, is_quiet
from lmms_eval_mai.engines.vllm.placement import LAUNCHER_VARIABLES

PROGRAM = "import sys; sys.path[:] = {path!r}; from lmms_eval_mai.engines.vllm.renderer_child import main; main()"
"""Not `multiprocessing`, which would import the user's script again in each process."""

MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
}
"""Settings of glibc: the memory of one image is used again for the next one. Otherwise the system takes it back and
clears it each time, which takes 2 of 14.5 ms for an image of one megapixel."""


class RendererChild:
    """A process and the socket to it."""

    def __init__(self) -> None:
        self.channel, other_end = shared_memory.socket_pair()
        command = [sys.executable, "-c", PROGRAM.format(path=sys.path), str(other_end.fileno()), str(os.getpid())]
        with other_end:
            self.process = subprocess.Popen(
                command,
                env=_environment(),
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is for the tables of lmms-eval
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
            )

    def kill(self) -> None:
        """End the process; it has nothing to save. Its socket can still be read."""
        self.process.kill()
        self.process.wait()

    def exit_reason(self) -> str:
        """Return why the process ended, for people."""
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment() -> dict[str, str]:
    """Return the variables of a renderer process: no GPU, one thread, no launcher, and a quiet log."""
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **MALLOC}
    if is_quiet():
        own |= {"VLLM_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"}
    return {name: value for name, value in os.environ.items() if name not in (*LAUNCHER_VARIABLES, START_LOG)} | own
