"""The files of journals: where they are, their lines and heads, and how they go when a run is complete."""

import contextlib
import json
import os
from collections.abc import Iterator
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


def complete(path: Path, files: list[Path], walked: set[SampleKey] | None) -> None:
    """Take the lines of these samples (None: all) out of `files` when this process ends well, or opens `path` again."""
    _complete[path] = util.Finalize(None, _leave_out, (files, walked), exitpriority=0)


def forget_complete(path: Path) -> None:
    done = _complete.pop(path, None)
    if done is not None:
        done()


def _leave_out(files: list[Path], walked: set[SampleKey] | None) -> None:
    """Rewrite journals without the samples of a complete run; no file where nothing else is in it."""
    for file in files:
        with contextlib.suppress(OSError):
            head, *lines = file.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if walked is not None and _sample_of(line) not in walked]
            if kept:
                part = file.with_suffix(".part")
                part.touch(0o600)  # the models' texts are nobody else's
                part.write_bytes(b"".join([head, *kept]))
                part.replace(file)
            else:
                file.unlink()


def _sample_of(line: bytes) -> SampleKey | None:
    try:
        record = json.loads(line)
        task, doc_id, repeat = (record["key"] if "key" in record else record["sample"])[:3]
    except (ValueError, TypeError, KeyError):
        return None
    return task, doc_id, repeat


def changed(path: Path) -> float:
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
def refused(folder: Path) -> Iterator[None]:
    """What the file system refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        raise JournalError(cannot_write(folder, error)) from None


def cannot_write(path: Path, error: OSError) -> str:
    return (
        f"The journal {path} cannot be written ({error.strerror or error}). Make room or give another folder with "
        "journal=PATH; journal=off does without, and a crash then loses the run."
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
