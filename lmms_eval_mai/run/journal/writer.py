"""Appends lines to a journal. A line is on the disk before `append` returns.

A thread writes the lines. All lines that are ready at the same time share one fsync. So no sample waits for another,
and neither a kill nor a power cut loses a finished call.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.files import write_error_text

_Line = tuple[bytes, Future[None]]
"""A line, and the future of its `append`. A sample that is cancelled does not cancel the other lines."""


class JournalWriter:
    """Writes one open file. Every method may be called in any thread."""

    def __init__(self, file: int, path: Path) -> None:
        """Raises `JournalError` if the system starts no more threads."""
        self._file = file
        self._path = path
        self._error: JournalError | None = None
        self._lines: SimpleQueue[_Line | None] = SimpleQueue()
        """None ends the thread."""
        self._adding = threading.Lock()
        """Held while a line is added, so that no line comes after the last one."""
        self._closed = False
        self._thread = threading.Thread(target=self._write_lines, name="mai-journal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise JournalError(write_error_text(path, error)) from None

    async def append(self, line: bytes) -> None:
        """Write a line. Raises `JournalError` for this and all later lines if the file cannot be written."""
        written: Future[None] = Future()
        with self._adding:
            if self._closed:
                raise JournalError(f"The journal {self._path} is closed, because its run has ended.")
            self._lines.put((line, written))
        await asyncio.wrap_future(written)

    def write(self, data: bytes) -> None:
        """Write at once. Raises `OSError`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Wait until all lines are on the disk, and end the thread. The file stays open."""
        with self._adding:
            if not self._closed:
                self._closed = True
                self._lines.put(None)
        self._thread.join()

    def _write_lines(self) -> None:
        for batch in self._batches():
            waiting = [written for _, written in batch if written.set_running_or_notify_cancel()]
            if self._error is None:  # a failed write may have left half a line, and the next line would continue it
                try:
                    self.write(b"".join(line for line, _ in batch))
                except Exception as error:
                    self._error = JournalError(write_error_text(self._path, error))
            for written in waiting:
                if self._error is None:
                    written.set_result(None)
                else:
                    written.set_exception(self._error)

    def _batches(self) -> Iterator[list[_Line]]:
        """Return the lines that are ready, as often as there are some, until the last one."""
        while (first := self._lines.get()) is not None:
            batch, ended = [first], False
            while not ended:
                try:
                    line = self._lines.get_nowait()
                except Empty:
                    break
                if line is None:
                    ended = True
                else:
                    batch.append(line)
            yield batch
            if ended:
                return
