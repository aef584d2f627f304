"""No engine outlives its run. vLLM's engine processes do not notice that the process which started them was killed, and
keep their memory, on a GPU too, for ever. A small process beside ours notices, and kills them.

It is a process and not a thread, since nothing in a killed process can act; it looks at its parent's number, since a
pipe's other end lives on in forked engines.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

WATCH = r"""
import os, select, signal, sys

def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return None

parent, watched, text = int(sys.argv[1]), {}, ""
while os.getppid() == parent:
    if select.select([0], [], [], 1.0)[0]:
        data = os.read(0, 65536).decode()
        text += data
        *lines, text = text.split("\n")
        for line in lines:
            if line == "done":
                sys.exit()
            pid, when = line.split()
            watched[int(pid)] = when
        if not data:
            break
for pid, when in watched.items():
    if started(pid) == when:
        os.kill(pid, signal.SIGKILL)
"""


class Watchdog:
    """Watches this process, and kills those it was told of when this one is gone. Linux: elsewhere it does nothing."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", WATCH, str(os.getpid())]
        # A session of its own: Ctrl-C in the terminal must not reach it.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        self._told: set[int] = set()

    def watch(self, pids: Iterable[int]) -> None:
        """May be called again and again with the same."""
        for pid in set(pids) - self._told - {self._process.pid}:
            if (when := _started(pid)) is not None:
                self._tell(f"{pid} {when}\n")
                self._told.add(pid)

    def close(self) -> None:
        """The engines have stopped: nothing is left to kill."""
        self._tell("done\n")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except OSError:  # it is gone itself: then nobody watches, and nothing else is wrong
            self._process.poll()


def _started(pid: int) -> str | None:
    """When a process began, so that another with its number is not taken for it. None: no such process, no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
