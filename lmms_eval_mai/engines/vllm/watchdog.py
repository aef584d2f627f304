"""Kills the engines' processes when this process ends without closing them, for example by SIGKILL.

vLLM's processes do not notice that the process which started them was killed. They would keep their memory, on a GPU
too, for ever. A small helper process notices it and kills them. It is a process and not a thread, because nothing in a
killed process can act. Linux only: elsewhere it does nothing.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from lmms_eval_mai.engines.vllm.watchdog_child import start_time

PROGRAM = Path(__file__).with_name("watchdog_child.py")


class Watchdog:
    """One helper process for all engines of this process. It starts with the first engine and ends with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: set[tuple[int, str]] = set()
        """Process ids with start times: the system gives the number of an ended process to a new one."""

    def open(self) -> None:
        """Start the helper process for the first engine. Call this once per engine, before it starts its processes."""
        with self._lock:
            self._engines += 1
            if self._process is None:
                command = [sys.executable, "-I", "-S", str(PROGRAM), str(os.getpid())]
                # A session of its own: Ctrl-C in the terminal must not reach it.
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def watch(self, pids: Iterable[int]) -> None:
        """Add processes that the helper kills if this process is killed. A process that is watched already is
        ignored."""
        with self._lock:
            for pid in pids:
                started = start_time(pid)
                if started is not None and (pid, started) not in self._watched:
                    self._send(f"{pid} {started}\n")
                    self._watched.add((pid, started))

    def close(self) -> None:
        """End the helper process after the last engine. Call this once per engine, after its processes have ended."""
        with self._lock:
            self._engines -= 1
            if self._engines or self._process is None:
                return
            self._send("done\n")
            process, self._process = self._process, None
            self._watched.clear()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except OSError:  # the helper process was killed: nobody watches, but the engines work
            self._process.poll()


WATCHDOG = Watchdog()
