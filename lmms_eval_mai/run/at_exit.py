"""Calls functions when this process ends by itself."""

import itertools
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
