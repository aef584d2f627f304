"""Journal files: their default folder, the format of their lines, and the error messages for failed writes.

A journal holds JSON lines. The first line is the head (format, fingerprint, tasks). After it comes one line for each
finished call, for each sample that has its answer (its exit), and for each sample that failed.
"""

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loguru import logger

from lmms_eval_mai.errors import JournalError

FORMAT = 2
"""Increase this number if older journals cannot be read any more. A run then ignores them; their files stay."""

SampleKey = tuple[str, int, int]
"""Task, document, repeat."""


class Line(NamedTuple):
    """The place of a line in an open journal. Its text stays on the disk until it is needed."""

    file: int
    offset: int
    length: int


def folder_of(journal: str | None) -> Path | None:
    """Return the folder of the model argument `journal`; None for `off`. A file is made in it and removed now, because
    lmms-eval builds the contexts of all documents before a journal is opened, which can take minutes. Raises
    `JournalError`."""
    if journal == "off":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(journal).expanduser() if journal else cache / "lmms-eval-mai" / "journal"
    with journal_io_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder


def line_of(record: dict[str, Any]) -> bytes:
    """Return a record as one line of a journal."""
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def lines_of(file: int) -> Iterator[tuple[int, bytes]]:
    """Return (offset, line) of each line of an open journal. The last line may be incomplete."""
    offset = 0
    # Do not open the file again: closing any descriptor of it would give up this process's lock.
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        for line in reader:
            yield offset, line
            offset += len(line)


def read_records(file: int, path: Path, use: Callable[[dict[str, Any], Line], None]) -> int:
    """Give each record of an open journal and its line to `use`. Returns the offset at which the last whole line ends.
    Damaged lines, and those that `use` cannot read, are left out with a warning."""
    end = damaged = 0
    for offset, line in lines_of(file):
        if not line.endswith(b"\n"):
            break
        end = offset + len(line)
        try:
            use(json.loads(line), Line(file, offset, len(line)))
        except (ValueError, TypeError, KeyError):
            damaged += 1
    if damaged:
        logger.warning(f"mai_cascade: {damaged} lines of {path} are damaged. Their calls are made again.")
    return end


def record_at(line: Line) -> dict[str, Any]:
    """Read one line of an open journal."""
    record: dict[str, Any] = json.loads(os.pread(line.file, line.length, line.offset))
    return record


def head_of(path: Path) -> dict[str, Any]:
    """Return the first line of a journal that this process does not write; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline(1_000_000))
        return head if isinstance(head, dict) and isinstance(head.get("fingerprint"), dict) else {}
    except (OSError, ValueError):
        return {}


def modified_time(path: Path) -> float:
    """Return when the file was last written; 0 if another run has just removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def sync_folder(folder: Path) -> None:
    """Write the names of new files to the disk."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def journal_io_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `JournalError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise JournalError(write_error_text(folder, error)) from None


def write_error_text(path: Path, error: Exception) -> str:
    """Return the message for a failed write: the reason, and what to do."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (
        f"The journal {path} cannot be written ({getattr(error, 'strerror', None) or error}). "
        f"{'Free some space, or choose' if full else 'Choose'} a writable folder with journal=FOLDER. With journal=off "
        "there is no journal, and a crash loses the run."
    )
