"""Locks a journal while a run writes it, so that no second run writes or removes it."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from loguru import logger

from lmms_eval_mai.errors import JournalError

_held: set[Path] = set()
"""Journals that this process writes now."""


class JournalInUse(JournalError):
    """Raised when a run of this or another process writes the journal. Users catch it as `JournalError`."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"Another run with the same arguments is writing the journal {path}. Wait until it ends, or give this "
            "run another folder with journal=FOLDER, or no journal with journal=off."
        )


def open_locked(path: Path, create: bool = True) -> int:
    """Open a journal and lock it until `close_locked`. `create`: if it is missing. Raises `OSError` or
    `JournalInUse`."""
    # A process is not locked out by its own locks, and closing any descriptor of the file would give up its lock.
    if path.resolve() in _held:
        raise JournalInUse(path)
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0), 0o600)
        try:
            # A `lockf` lock belongs to this process only, not to its children: an engine process that lives longer does
            # not keep the journal locked.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                os.close(file)
                raise JournalInUse(path) from None
            if create:
                logger.warning(
                    f"mai_cascade: {path} cannot be locked ({error.strerror}): make sure that no two runs write it."
                )
        if _is_at(path, file):
            _held.add(path.resolve())
            return file
        os.close(file)  # another process has removed the file since it was opened here


def close_locked(file: int, path: Path) -> None:
    """Close a journal, which gives up its lock."""
    os.close(file)
    _held.discard(path.resolve())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Lock a journal that exists, so that no run begins to write it. Yields its descriptor: to open the file again and
    to close it would give up the lock. Raises `OSError` or `JournalInUse`."""
    file = open_locked(path, create=False)
    try:
        yield file
    finally:
        close_locked(file, path)


def is_locked(path: Path) -> bool:
    """Return whether a run of this process or of another one writes this journal now."""
    try:
        with locked(path):
            return False
    except JournalInUse:
        return True
    except OSError:
        return False


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
