"""Which tests are slow, and which tests one worker of pytest-xdist runs.

A test is slow if it starts an engine; its fixtures tell. Tests that share a running engine are one group, which one
worker runs, or each worker would start that engine.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW = {
    "vllm": ("vllm", "server"),
    "demo servers": ("servers",),
    "demo": ("demo_run",),
    "InternVL": ("tiny_internvl",),
    "tiny pair": ("tiny_pair",),
    "training": ("batches",),
}
"""Group -> the fixtures by which a test belongs to it; the first group counts. The longest groups come first."""


def group_of(item: pytest.Item) -> str | None:
    """Return the group of a slow test, or None."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return next((group for group, names in SLOW.items() if fixtures & set(names)), None)


def mark(items: list[pytest.Item]) -> None:
    """Mark slow tests, and put every test into a group for pytest-xdist: the groups above first, then one per file."""
    order = {group: place for place, group in enumerate(SLOW)}
    for item in items:
        group = group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group(group or item.path.stem))
    items.sort(key=lambda item: order.get(group_of(item) or "", len(order)))


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
