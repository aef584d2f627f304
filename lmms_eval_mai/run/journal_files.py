"""The files of journals: where they are, their lines and heads, and how they go when a run is complete."""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from lmms_eval_mai.errors import JournalError

SampleKey = tuple[str, int, int]
"""Task, document, repeat."""


def default_folder() -> Path:
    """`lmms-eval-mai/journal` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmms-eval-mai" / "journal"


_complete: dict[Path, util.Finalize] = {}
"""Journals of runs that this process completed."""


def remove_at_exit(
    path: Path, files: list[Path], walked: set[SampleKey] | None, written: Callable[[], bool] = lambda: True
) -> None:
    """Remove `files` when this process ends by itself, or opens `path` again: if the results are `written`, and unless
    they hold other samples than these (None: whatever they hold), those of a longer run that is not complete."""
    _complete[path] = util.Finalize(None, _remove, (files, walked, written), exitpriority=0)


def remove_now(path: Path) -> None:
    done = _complete.pop(path, None)
    if done is not None:
        done()


def keep() -> list[Path]:
    """The journals of runs that this process completed are to stay after all."""
    for done in _complete.values():
        done.cancel()
    kept = list(_complete)
    _complete.clear()
    return kept


def _remove(files: list[Path], walked: set[SampleKey] | None, written: Callable[[], bool]) -> None:
    with contextlib.suppress(OSError):
        if not written():
            return
        if walked is None or all(_sample_of(line) in walked for file in files for line in _records(file)):
            for file in files:
                file.unlink()


def _records(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        next(lines, None)  # the head
        yield from lines


def _sample_of(line: bytes) -> SampleKey | None:
    try:
        record = json.loads(line)
        task, doc_id, repeat = (record["key"] if "key" in record else record["sample"])[:3]
    except (ValueError, TypeError, KeyError):
        return None
    return task, doc_id, repeat


def modified_time(path: Path) -> float:
    """When; 0 for a file that another run has just removed."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk too."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def journal_io_errors(folder: Path) -> Iterator[None]:
    """What the file system refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        raise JournalError(write_error_text(folder, error)) from None


def write_error_text(path: Path, error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return (
        f"The journal {path} cannot be written ({error.strerror or error}). "
        f"{'Make room, or give' if full else 'Give'} a folder that can be written with journal=FOLDER; journal=off "
        "does without, and a crash then loses the run."
    )


def line_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def lines_of(file: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of each line; the last may lack its end."""
    offset = 0
    # Not through a second descriptor: closing any of a file's gives up the process's lock on it.
    with open(file, "rb", closefd=False) as reader:
        reader.seek(0)
        for line in reader:
            yield offset, line
            offset += len(line)


def head_of(path: Path) -> dict[str, Any]:
    """The first line of any journal; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline(1_000_000))
        return head if isinstance(head, dict) and isinstance(head.get("fingerprint"), dict) else {}
    except (OSError, ValueError):
        return {}
