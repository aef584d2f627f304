"""Which tests are slow, and which tests one worker of pytest-xdist runs.

A test is slow if it starts an engine or a command; its fixtures tell. Other slow tests have the mark themselves. Tests
that share a running engine are one group, which one worker runs, or each worker would start that engine.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW = {
    "vllm": ("vllm", "server"),
    "demo": ("demo_run", "servers"),
    "InternVL": ("tiny_internvl",),
    "tiny pair": ("tiny_pair",),
    "commands": ("command",),
}
"""Group -> the fixtures by which a test belongs to it; the first group counts. The longest groups come first."""

LONG = ("test_resume", "test_model", "test_plugin", "test_restart", "test_replay_9000", "test_demo_training")
"""Files that take longest of those without engines."""


def group_of(item: pytest.Item) -> str:
    """Return the slow group of a test, or the name of its file."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return next((group for group, names in SLOW.items() if fixtures & set(names)), item.path.stem)


def mark(items: list[pytest.Item]) -> None:
    """Mark slow tests, put every test into a group for pytest-xdist, and let the longest groups run first."""
    for item in items:
        group = group_of(item)
        item.add_marker(pytest.mark.xdist_group(group))
        if group in SLOW:
            item.add_marker(pytest.mark.slow)
    order = [*SLOW, *LONG]
    items.sort(key=lambda item: order.index(group_of(item)) if group_of(item) in order else len(order))


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time make the files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def in_parallel() -> bool:
    """Return whether this process is one of several workers."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) > 1
