"""Locks a journal while a run writes it, so that no second run writes or removes it."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from loguru import logger

from lmms_eval_mai.errors import JournalError

_LOCKED_BY_OTHERS = (errno.EACCES, errno.EAGAIN)

_held: set[Path] = set()
"""Journals that this process writes now."""


def open_locked(path: Path) -> int:
    """Open a journal, which is created if it is missing, and lock it until `close_locked`. Raises `OSError`, or
    `JournalError` if a run of this or another process writes it."""
    # A process is not locked out by its own locks, and closing any descriptor of the file would give up its lock.
    if path.resolve() in _held:
        raise _used_by_other(path)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            _lock(file, path)
            if _is_at(path, file):
                _held.add(path.resolve())
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another process has removed the file since it was opened here


def close_locked(file: int, path: Path) -> None:
    """Close a journal, which gives up its lock."""
    os.close(file)
    _held.discard(path.resolve())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Lock a journal that exists, so that no run begins to write it. Yields its descriptor: to open the file again and
    to close it would give up the lock. Raises `OSError`, or `JournalError` if a run writes it."""
    if path.resolve() in _held:
        raise _used_by_other(path)
    file = os.open(path, os.O_RDWR)
    _held.add(path.resolve())
    try:
        _lock(file, path, warns=False)
        yield file
    finally:
        close_locked(file, path)


def is_locked(path: Path) -> bool:
    """Return whether a run of this process or of another one writes this journal now."""
    try:
        with locked(path):
            return False
    except JournalError:
        return True
    except OSError:
        return False


def _lock(file: int, path: Path, warns: bool = True) -> None:
    try:
        # A `lockf` lock belongs to this process only, not to its children: an engine process that lives longer does not
        # keep the journal locked.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_BY_OTHERS:
            raise _used_by_other(path) from None
        if warns:
            logger.warning(
                f"mai_cascade: {path} cannot be locked ({error.strerror}): make sure that no two runs write it."
            )


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _used_by_other(path: Path) -> JournalError:
    return JournalError(
        f"Another run with the same arguments is writing the journal {path}. Wait until it ends, or give this "
        "run another folder with journal=FOLDER, or no journal with journal=off."
    )
