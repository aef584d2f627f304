"""Locks a journal while a run writes it, so that no second run does."""

import errno
import fcntl
import os
from pathlib import Path

from loguru import logger

from lmms_eval_mai.errors import JournalError

_LOCKED_BY_OTHERS = (errno.EACCES, errno.EAGAIN)

_held: set[Path] = set()
"""Journals that this process writes now."""


def lock(file: int, path: Path) -> None:
    """Lock an open journal until `release`. Raises `JournalError` if another process has locked it."""
    try:
        # A `lockf` lock belongs to this process only, not to its children: an engine process that lives longer does not
        # keep the journal locked.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_BY_OTHERS:
            raise _used_by_other(path) from None
        logger.warning(f"mai_cascade: {path} cannot be locked ({error.strerror}): make sure that no two runs write it.")
    _held.add(path.resolve())


def check_not_held(path: Path) -> None:
    """Refuse a journal that this process writes already, before it is opened: a process is not locked out by its own
    locks, and closing any descriptor of the file would give up its lock. Raises `JournalError`."""
    if path.resolve() in _held:
        raise _used_by_other(path)


def _used_by_other(path: Path) -> JournalError:
    return JournalError(
        f"Another run with the same arguments is writing the journal {path}. Wait until it ends, or give this "
        "run another folder with journal=FOLDER, or no journal with journal=off."
    )


def release(path: Path) -> None:
    """Forget the lock. Closing the file has given it up."""
    _held.discard(path.resolve())


def is_locked(path: Path) -> bool:
    """Return whether a run of this process or of another one writes this journal now."""
    if path.resolve() in _held:  # do not open the file: closing any descriptor of it would give up this process's lock
        return True
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _LOCKED_BY_OTHERS
    finally:
        os.close(file)
    return False
