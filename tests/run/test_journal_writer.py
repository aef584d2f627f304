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
    """A writer whose writes wait until the test lets them go on. After a failed write, its file can be written."""

    def __init__(self, file: int, path: Path, error: Exception | None = None) -> None:
        self.writing, self.go_on, self.error = threading.Event(), threading.Event(), error
        self.repair = lambda: make_writable(file, path)
        super().__init__(file, path)

    def write(self, data: bytes) -> None:
        self.writing.set()
        self.go_on.wait(timeout=10)
        try:
            if self.error is not None:
                raise self.error
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


@pytest.mark.parametrize(
    ("error", "reason"), [(None, "Bad file descriptor"), (RuntimeError("no more threads"), "no more threads")]
)
def test_a_line_that_waits_behind_a_failed_write_is_not_written_and_raises_the_error(
    file: int, path: Path, error: Exception | None, reason: str
) -> None:
    async def append() -> list[object]:
        writer = SlowWriter(file, path, error)
        first = asyncio.ensure_future(writer.append(b"first\n"))
        assert await asyncio.to_thread(writer.writing.wait, 10)
        second = asyncio.ensure_future(writer.append(b"second\n"))
        await asyncio.sleep(0)
        writer.go_on.set()
        failed = await asyncio.gather(first, second, return_exceptions=True)
        failed += await asyncio.gather(writer.append(b"third\n"), return_exceptions=True)
        writer.close()
        return failed

    errors = asyncio.run(append())
    assert [type(error) for error in errors] == [JournalError] * 3 and reason in str(errors[0])
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
        writer.close()
        return found

    first, second, third = asyncio.run(append())
    assert first is third is None and isinstance(second, asyncio.CancelledError)
    assert {"first", "third"} <= set(path.read_text().split())


def test_lines_that_nobody_waits_for_are_on_the_disk_when_the_journal_is_closed(file: int, path: Path) -> None:
    make_writable(file, path)
    writer = SlowWriter(file, path)

    async def leave() -> None:
        lines = [asyncio.ensure_future(writer.append(b"line\n")) for _ in range(3)]
        await asyncio.sleep(0)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    asyncio.run(leave())
    writer.go_on.set()
    writer.close()
    assert path.read_text() == "line\n" * 3
    with pytest.raises(JournalError, match="is closed"):
        asyncio.run(writer.append(b"late\n"))


def test_system_without_more_threads_is_a_journal_error(file: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(JournalError, match="can't start new thread"):
        JournalWriter(file, path)
