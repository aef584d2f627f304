"""The writer of the journal: a cancelled line does not cancel others, and nothing is written after a failed write."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmms_eval_mai.errors import JournalError
from lmms_eval_mai.run.journal.writer import JournalWriter


def make_writable(file: int, path: Path) -> None:
    writable = os.open(path, os.O_WRONLY)
    os.dup2(writable, file)
    os.close(writable)


class SlowWriter(JournalWriter):
    """A writer whose first write waits until the test lets it go on. After a failed write, its file can be written."""

    def __init__(self, file: int, path: Path) -> None:
        super().__init__(file, path)
        self.go_on = threading.Event()
        self.repair = lambda: make_writable(file, path)

    def write(self, data: bytes) -> None:
        self.go_on.wait(timeout=10)
        try:
            super().write(data)
        except OSError:
            self.repair()
            raise


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "journal"
    found.touch()
    return found


@pytest.fixture
def file(path: Path) -> Iterator[int]:
    found = os.open(path, os.O_RDONLY)
    yield found
    os.close(found)


def test_a_line_that_waits_behind_a_failed_write_is_not_written_and_raises_the_error(file: int, path: Path) -> None:
    async def append() -> list[object]:
        writer = SlowWriter(file, path)
        first = asyncio.ensure_future(writer.append(b"first\n"))
        await asyncio.sleep(0)  # `first` starts the writer's task ...
        await asyncio.sleep(0)  # ... which takes its line
        second = asyncio.ensure_future(writer.append(b"second\n"))
        await asyncio.sleep(0)
        writer.go_on.set()
        failed = await asyncio.gather(first, second, return_exceptions=True)
        failed += await asyncio.gather(writer.append(b"third\n"), return_exceptions=True)
        writer.close()
        return failed

    errors = asyncio.run(append())
    assert [type(error) for error in errors] == [JournalError] * 3
    assert path.read_text() == ""


def test_a_cancelled_line_cancels_no_other_line(file: int, path: Path) -> None:
    make_writable(file, path)

    async def append() -> list[object]:
        writer = SlowWriter(file, path)
        lines = [asyncio.ensure_future(writer.append(line)) for line in (b"first\n", b"second\n", b"third\n")]
        await asyncio.sleep(0)
        lines[1].cancel()
        writer.go_on.set()
        found = await asyncio.gather(*lines, return_exceptions=True)
        await writer.flush()
        writer.close()
        return found

    first, second, third = asyncio.run(append())
    assert first is third is None and isinstance(second, asyncio.CancelledError)
    assert {"first", "third"} <= set(path.read_text().split())
