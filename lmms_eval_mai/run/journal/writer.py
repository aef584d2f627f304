"""Opens a journal and appends lines to it. A line is on the disk before `append` returns.

A thread writes the lines. All lines that are ready at the same time share one fsync. So no sample waits for another,
and neither a kill nor a power cut loses a finished call.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.files import Line, journal_io_errors, read_records, sync_folder, write_error_text
from lmms_eval_mai.run.journal.lock import close_locked, open_locked

_Line = tuple[bytes, Future[None]]
"""A line, and the future of its `append`. A sample that is cancelled does not cancel the other lines."""


class JournalWriter:
    """Writes one file, which no other run can write until `close`. Every method may be called in any thread."""

    def __init__(self, path: Path, use: Callable[[dict[str, Any], Line], None]) -> None:
        """Open the file, which is created if it is missing, give its records to `use` (`read_records`), and cut off an
        incomplete last line. Raises `JournalInUse` if another run writes the file, and `JournalError` if it cannot be
        written or the system starts no more threads."""
        self._path = path
        self._error: JournalError | None = None
        self._lines: SimpleQueue[_Line | None] = SimpleQueue()
        """None ends the thread."""
        self._adding = threading.Lock()
        """Held while a line is added, so that no line comes after the last one."""
        self._ended = False
        self._thread = threading.Thread(target=self._write_lines, name="mai-journal", daemon=True)
        with journal_io_errors(path.parent), contextlib.ExitStack() as undo:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open_locked(path)
            undo.callback(close_locked, self.file, path)
            sync_folder(path.parent)
            self.length = read_records(self.file, path, use)
            """The length of the file in bytes when it was opened."""
            os.ftruncate(self.file, self.length)
            try:
                self._thread.start()
            except RuntimeError as error:
                raise JournalError(write_error_text(path, error)) from None
            undo.pop_all()

    async def append(self, line: bytes) -> None:
        """Write a line. Raises `JournalError` for this and all later lines if the file cannot be written."""
        written: Future[None] = Future()
        with self._adding:
            if self._ended:
                raise JournalError(f"The journal {self._path} is closed, because its run has ended.")
            self._lines.put((line, written))
        await asyncio.wrap_future(written)

    def write(self, data: bytes) -> None:
        """Write at once. Raises `OSError`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.file, view) :]
        os.fsync(self.file)

    def end(self) -> None:
        """Wait until all lines are on the disk, and take no more lines. The file stays open and locked."""
        with self._adding:
            if not self._ended:
                self._ended = True
                self._lines.put(None)
        self._thread.join()

    def close(self) -> None:
        """Do the work of `end`, and close the file."""
        self.end()
        close_locked(self.file, self._path)

    def _write_lines(self) -> None:
        last = False
        while not last:
            lines = [self._lines.get()]
            while not self._lines.empty():  # no other thread takes lines
                lines.append(self._lines.get())
            last = lines[-1] is None
            self._write_batch([line for line in lines if line is not None])

    def _write_batch(self, batch: list[_Line]) -> None:
        waiting = [written for _, written in batch if written.set_running_or_notify_cancel()]
        if batch and self._error is None:  # a failed write may have left half a line, and the next would continue it
            try:
                self.write(b"".join(line for line, _ in batch))
            except Exception as error:
                self._error = JournalError(write_error_text(self._path, error))
        for written in waiting:
            if self._error is None:
                written.set_result(None)
            else:
                written.set_exception(self._error)
