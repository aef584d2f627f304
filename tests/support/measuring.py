"""What coverage measures in `make test`: the tests of the measured packages, and the commands that those tests start.

Python takes up to three times as long with a tracer. So nothing else has one: not the tests of other packages or with
real engines, not the collection, and not the processes of engines and servers, which do not run the measured packages.
"""

import contextlib
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator

import pytest
from support.groups import group_of

PACKAGES = ("lmms_eval_mai.paper", "lmms_eval_mai.run")
"""`make test` reports the coverage of these."""

_STARTS = "COVERAGE_PROCESS_CONFIG"
"""coverage starts in each Python process that has this variable."""

_KEPT = "LMMS_EVAL_MAI_TEST_COVERAGE"
"""Holds the value of that variable for `measure_this_process`."""

_OTHERS = ("cli", "engines", "tools", "tests")
"""Folders of tests without which the measured packages are covered."""

_ENGINES = ("vllm", "demo", "InternVL", "tiny pair")
"""Groups of tests with real engines."""


def is_measured(item: pytest.Item) -> bool:
    """Return whether the measured packages need this test for their coverage."""
    folder = item.path.parent.name
    if folder in _OTHERS or group_of(item) in _ENGINES:
        return False
    if folder == "harness":  # its other tests run lmms-eval's tasks and scorers
        return bool({"evaluate", "command"} & set(getattr(item, "fixturenames", ())))
    return item.path.stem != "test_agreement_properties"


def is_on() -> bool:
    """Return whether coverage measures what this thread does."""
    return sys.gettrace() is not None


def measure_only_on_request() -> None:
    """Let processes that start from now on be measured only if they call `measure_this_process`."""
    if _STARTS in os.environ:
        os.environ[_KEPT] = os.environ.pop(_STARTS)


def measure_this_process() -> None:
    """Measure the rest of this process, but no process that it starts. Does nothing without coverage."""
    if _KEPT in os.environ:
        import coverage

        os.environ[_STARTS] = os.environ[_KEPT]
        coverage.process_startup()
        measure_only_on_request()


def import_measured_packages() -> None:
    """Let coverage see the lines that run at the import of the measured packages."""
    if is_on():
        for package in PACKAGES:
            path = importlib.import_module(package).__path__
            for module in pkgutil.walk_packages(path, f"{package}."):
                importlib.import_module(module.name)


@contextlib.contextmanager
def unmeasured() -> Iterator[None]:
    """Run without a tracer, in this thread and in threads that start meanwhile."""
    tracer, tracer_of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(tracer_of_threads)  # type: ignore[arg-type]
        sys.settrace(tracer)
