"""The watchdog's own program. It runs by path with `python -I -S`, so it imports nothing but the standard library.

Argument: the process id of its parent. Standard input: one line "PID START_TIME" per process to watch, and at the end
"done". It kills the watched processes if its parent ends before that.
"""

import os
import select
import signal
import sys

POLL_S = 1.0


def start_time(pid: int) -> str | None:
    """Return when the process started, in clock ticks since boot. None: it does not exist, or this is not Linux."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def main(parent: int) -> None:
    watched: dict[int, str] = {}
    text = ""
    while True:
        if not select.select([0], [], [], POLL_S)[0]:
            # The end of the input is not enough: a forked process keeps the pipe open after its parent has ended.
            if os.getppid() != parent:
                break
            continue
        data = os.read(0, 65536).decode()
        if not data:
            break
        *lines, text = (text + data).split("\n")
        for line in lines:
            if line == "done":
                return
            pid, started = line.split()
            watched[int(pid)] = started
    for process, started in watched.items():
        if start_time(process) == started:  # else another process has its number now
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
