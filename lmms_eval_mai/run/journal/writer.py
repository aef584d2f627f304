"""Appends lines to a journal. A line is on the disk before `append` returns.

All lines that are ready at the same time share one fsync, in a thread of its own. So no sample waits for another, and
neither a kill nor a power cut loses a finished call.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.files import write_error_text


class JournalWriter:
    """Writes one open file. `append` and `flush` are called on one event loop, the other methods from anywhere."""

    def __init__(self, file: int, path: Path) -> None:
        self._file = file
        self._path = path
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        """Lines, each with the future of its `append`: a sample that is cancelled does not cancel the others."""
        self._task: asyncio.Task[None] | None = None
        self._error: JournalError | None = None
        self._thread = ThreadPoolExecutor(1, "mai-journal")

    async def append(self, line: bytes) -> None:
        """Write a line. Raises `JournalError` for this and all later lines if the file cannot be written."""
        if self._error is not None:
            raise self._error  # the failed write may have left half a line, and the next line would continue it
        loop = asyncio.get_running_loop()
        written = loop.create_future()
        self._pending.append((line, written))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._write_batches())
        await written

    async def flush(self) -> None:
        """Wait until all appended lines are on the disk."""
        if self._task is not None:
            await self._task

    def write(self, data: bytes) -> None:
        """Write at once, without the event loop. Raises `OSError`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Stop the thread. The file stays open."""
        self._thread.shutdown()

    async def _write_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            if self._error is None:
                try:
                    await loop.run_in_executor(self._thread, self.write, b"".join(line for line, _ in batch))
                except OSError as error:
                    self._error = JournalError(write_error_text(self._path, error))
            for _, written in batch:
                if written.done():  # its sample was cancelled
                    continue
                if self._error is None:
                    written.set_result(None)
                else:
                    written.set_exception(self._error)
