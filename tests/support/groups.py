"""Which tests are slow, and which tests one worker of pytest-xdist runs.

A test is slow if it starts an engine or a command; its fixtures tell. Other slow tests have the mark themselves. Tests
that share a running engine are one group, which one worker runs, or each worker would start that engine.
"""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SLOW = {
    "vllm": ("vllm", "server"),
    "demo": ("demo_run", "servers"),
    "InternVL": ("tiny_internvl",),
    "tiny pair": ("tiny_pair",),
    "commands": ("command",),
}
"""Group -> the fixtures by which a test belongs to it; the first group counts. The longest groups come first."""

FAST = {
    "test_resume": (),
    "tasks": ("task_manager",),
}
"""Groups of tests that share something else that takes seconds to make, or a file."""

GROUPS = SLOW | FAST

MEASURED = ("paper", "run", "harness")
"""Folders whose fast tests `make test` runs with coverage, because they cover `paper/` and `run/`. A tracer makes
Python up to three times slower, so the other tests run without it."""

FILE = "LMMS_EVAL_MAI_TEST_GROUPS"
"""Variable with the path of a file: the workers collect the tests and write their groups, the scheduler reads them."""


def group_of(item: pytest.Item) -> str:
    """Return the group of a test, or the name of its file."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return next((group for group, names in GROUPS.items() if fixtures & set(names)), item.path.stem)


def arrange(items: list[pytest.Item]) -> None:
    """Mark slow tests, and let the longest groups run first."""
    groups = {item.nodeid: group_of(item) for item in items}
    for item in items:
        if groups[item.nodeid] in SLOW:
            item.add_marker(pytest.mark.slow)
        calls_scorers = item.path.stem == "test_agreement_properties"  # thousands of times: minutes with a tracer
        if item.path.parent.name in MEASURED and item.get_closest_marker("slow") is None and not calls_scorers:
            item.add_marker(pytest.mark.measured)
    order = list(GROUPS)
    items.sort(key=lambda item: order.index(group) if (group := groups[item.nodeid]) in order else len(order))
    if FILE in os.environ:
        with tempfile.NamedTemporaryFile("w", dir=Path(os.environ[FILE]).parent, delete=False) as file:
            json.dump(groups, file)
        os.replace(file.name, os.environ[FILE])  # all workers write the same


class GroupScheduling(LoadScopeScheduling):
    """Gives each group to one worker, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = json.loads(Path(os.environ[FILE]).read_text())
        return self._groups[nodeid]


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
