"""Calls functions when this process ends by itself."""

import itertools
import os
import threading
from collections.abc import Callable
from multiprocessing import util

_registered = itertools.count()


def at_exit(function: Callable[[], None]) -> "util.Finalize[None]":
    """Call `function` when this process ends, in the order of registration. A fatal signal prevents the call.

    Call the returned object to run the function now, or its `cancel()` to drop it.

    This is not `atexit`, for two reasons. Python 3.11 ends a process that multiprocessing has started with
    `util._exit_function()` and without the functions of `atexit` (`BaseProcess._bootstrap`). And a child that this
    process forks must not call the functions of its parent: `Finalize` compares process ids.
    """
    return util.Finalize(None, function, exitpriority=1000 - next(_registered))  # the highest priority runs first


_waiting: dict[int, Callable[[], None]] = {}
"""The functions of `at_end_of_main_thread` that were not dropped."""


def at_end_of_main_thread(function: Callable[[], None]) -> Callable[[], object]:
    """Call `function` when the main thread of this process ends by itself, while threads can still be started. Engines
    need threads to stop, and at the time of `at_exit` Python starts no more.

    Call the returned object to drop the function.
    """
    number, process = next(_registered), os.getpid()
    _waiting[number] = function

    def call() -> None:
        # A child that multiprocessing forks runs the functions of its parent too.
        if os.getpid() == process and (waiting := _waiting.pop(number, None)) is not None:
            waiting()

    # A private function, which concurrent.futures uses for the same purpose since Python 3.9.
    threading._register_atexit(call)  # type: ignore[attr-defined]
    return lambda: _waiting.pop(number, None)
